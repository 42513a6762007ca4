"""The laws of packproof's properties, one sentence each, in the order of `catalogue`. Importing them needs no torch."""

from collections.abc import Mapping

LAWS: Mapping[str, str] = {
    "reference": "Values and gradients lie within the error budget of the float64 reference, element by element.",
    "packing": (
        "A sequence computes in the pack what it computes alone; shared gradients are the sum over the sequences."
    ),
    "isolation": (
        "What the other sequences and the slack hold (inputs, states, incoming gradients) changes nothing in this one."
    ),
    "causality": "Later tokens change no earlier output, and earlier incoming gradients no later token's gradient.",
    "permutation": "Reordering the sequences reorders the results; shared gradients stay within the budget.",
    "carry": (
        "Tokens run in pieces, each with the states or the keys of those before, have the values and gradients of one "
        "run."
    ),
    "pool": (
        "A request's result depends on its tokens and its slot's state alone; slots of no request keep their bits; "
        "at once, in chunks and step by step are the same."
    ),
    "partition": (
        "A pack cut over ranks at any token has the values and gradients of one rank; shared gradients are the sum."
    ),
    "determinism": (
        "The same call gives the same result: again, after other shapes, in a new process, "
        "with metadata edited in place."
    ),
    "memory": (
        "Inputs and returned outputs stay as they are, every output row is written, nothing is read before, "
        "canaries stay whole."
    ),
    "strides": (
        "Transposed, sliced and expanded inputs and incoming gradients give the same result, or a refusal "
        "that names them."
    ),
    "metadata": (
        "int64 offsets, empty sequences anywhere and more slack change nothing; zero tokens and zero sequences work."
    ),
    "reuse": (
        "After a call with one other argument, all else in the same tensors, the answer is the same as before it; and "
        "an answer stays as it is through the next call."
    ),
    "gradients": (
        "Gradients are the same by some inputs as by all, of outputs together and apart, twice, through hooks, and "
        "added to a gradient that is there already."
    ),
    "modes": "Under no_grad, inference_mode, autocast and torch.func it computes what it computes elsewhere.",
    "double_backward": "A second derivative is the reference's, or an error: never another value.",
    "opcheck": "Operators that it registers with torch pass torch.library.opcheck.",
    "torch_compile": "Through torch.compile it computes the same values and gradients.",
    "side_stream": "On a side stream whose work has yet to produce the inputs it computes the same.",
    "cuda_graph": (
        "Replayed from a CUDA graph with other boundaries it computes the same, where it promises to be capturable."
    ),
    "steady": (
        "A new layout of known shapes makes it compile, tune and read nothing on the host, and keep no more memory."
    ),
    "races": (
        "On request, on a GPU: called many times while warps, blocks and launches are delayed, it gives one result."
    ),
    "size": (
        "Past 2^32 elements, 131,071 sequences and 65,535 chunks of 256 tokens a pack gives what it gives elsewhere."
    ),
}

ON_REQUEST = frozenset({"races"})  # judged where they are named, for the time that they take

MODULE_LAWS: Mapping[str, str] = {
    "isolation": (
        "When one document of a pack changes, the others keep their bits, and have no gradient at its tokens."
    ),
    "packing": "Outputs are those of the documents alone; gradients of parameters are the sum over the documents.",
    "padding": "What rows of no document hold changes no document and no gradient, and no NaN comes of them.",
    "loss": (
        "No label crosses a boundary. The loss is a reduction of the documents' losses, and its gradients are theirs, "
        "each times its share."
    ),
    "modes": "A training step in this mode has the losses, gradients and buffers of one in plain train mode.",
}
