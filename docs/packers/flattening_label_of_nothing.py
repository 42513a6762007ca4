"""transformers' padding-free collator at an empty document: up to 5.23 it gets a label, and labels are one too many."""

from transformers import DataCollatorWithFlattening

batch = DataCollatorWithFlattening()([{"input_ids": [5, 6]}, {"input_ids": []}, {"input_ids": [7]}])
print({name: value.tolist() for name, value in batch.items()})
print(f"{batch['input_ids'].numel()} tokens, {batch['labels'].numel()} labels")
