// The backward pass of ssd in CUDA C++ for Hopper (sm_90a), where ssd.cu has the forward pass and there is no gate:
//
//   _ssd_fwd_prepare_kernel   of each chunk, C Bt of a group for all heads, log-decays and steps
//   _ssd_bwd_state_kernel     the states between chunks again, in bf16
//   _ssd_bwd_segment_kernel   gradients of states at the starts of segments from zero, where a sequence has several
//   _ssd_bwd_scan_kernel      dx, and the gradients of states between chunks, in bf16
//   _ssd_bwd_chunk_kernel     all other gradients from both, chunk by chunk, summed over the heads of a group
//   _ssd_bwd_short_kernel     all gradients of sequences of up to 32 tokens
//
// The mathematics is that of ssd_bwd.py, whose kernels take last chunks of up to 32 tokens. Products have operands of fp32
// (scores, weighted rows, gradients of scores) as two parts of bf16; states and their gradients enter as bf16.
//
// Compile-time macros, as of ssd.cu; GATED is 0.

#include "hardware.cuh"
#include "hopper.cuh"
#include "wgmma.cuh"

// gradients need the steps themselves
constexpr bool STEPS_IN_EXPONENT = false;

#include "ssd_common.cuh"
#include "ssd_chunk.cuh"
#include "ssd_fwd_prepare.cuh"
#include "ssd_bwd_common.cuh"
#include "ssd_segments.cuh"
#include "ssd_bwd_states.cuh"
#include "ssd_bwd_segments.cuh"
#include "ssd_bwd_scan.cuh"
#include "ssd_bwd_chunk.cuh"
#include "ssd_bwd_short.cuh"
