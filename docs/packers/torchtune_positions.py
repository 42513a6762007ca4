"""torchtune's positions of a document that is longer than a pack begin at 0 again in the middle of a piece."""

from torchtune.datasets import PackedDataset

documents = [[2] * 5, [3] * 21, [4]]
samples = [{"tokens": tokens, "labels": list(tokens)} for tokens in documents]
for number, pack in enumerate(PackedDataset(samples, max_seq_len=10, split_across_pack=True)):
    print(f"pack {number}: documents of {pack['seq_lens'].tolist()} tokens")
    print("    tokens   ", pack["tokens"].tolist())
    print("    positions", pack["input_pos"].tolist())
