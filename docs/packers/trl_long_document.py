"""TRL's default packing keeps the first `seq_length` tokens of a longer document, as its page says; "bfd_split" all."""

import datasets
from trl import pack_dataset

datasets.disable_progress_bars()
documents = [list(range(11)), [100, 101]]
for strategy in ("bfd", "bfd_split"):
    packed = pack_dataset(datasets.Dataset.from_dict({"input_ids": documents}), 10, strategy)
    tokens = [token for row in packed for token in row["input_ids"]]
    print(f"{strategy}: {len(tokens)} of 13 tokens, in rows {[row['input_ids'] for row in packed]}")
