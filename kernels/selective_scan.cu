// selective_scan in CUDA C++: the large kernels of selective_scan_fwd.py and selective_scan_bwd.py, with the names and
// the parameters that they have there. A program takes 128 channels of a window of the pack, in forward a thread takes one.
//
// Compile-time macros, all set by selective_scan_launch.py:
//   TOKEN               dtype of the tokens: FP32, FP16 or BF16
//   GATED               1 if there is a gate z
//   SOFTPLUS            1 if the time step is softplus(delta + bias), 0 if it is delta + bias
//   WINDOW              tokens whose pieces a program takes
//   SIZE                tokens of a piece
//   KEEP                tokens between two states that forward keeps for backward
//   CHUNK_STATE_BLOCKS  blocks of a multiprocessor that registers must suffice for, in the kernels of chunk states;
//   FORWARD_BLOCKS      in the forward kernel;
//   BACKWARD_BLOCKS     in the backward kernel

#include "hardware.cuh"
#include "selective_scan_common.cuh"
#include "selective_scan_fwd.cuh"
#include "selective_scan_bwd.cuh"
