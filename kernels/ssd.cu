// ssd in CUDA C++ for Hopper (sm_90a): the forward pass for bf16 tokens, heads of 64 channels, 64 or 128 states.
//
//   _ssd_fwd_prepare_kernel         of each chunk, C Bt of a group for all heads, log-decays and steps
//   _ssd_fwd_segment_state_kernel   states at the ends of segments from zero, and
//   _ssd_fwd_state_passing_kernel   the states between segments from them, where a sequence has several
//   _ssd_fwd_scan_kernel            y, segment by segment
//   _ssd_fwd_short_kernel           y of sequences of up to 32 tokens
//
// The mathematics is that of ssd_fwd.py. Products have operands of fp32 (scores, states, weighted x) as two parts of bf16.
//
// Compile-time macros, all set by ssd_cuda_launch.py:
//   TOKEN          BF16
//   STATES         64 or 128
//   SEGMENT        tokens of a segment, a multiple of 64, at most 2,048
//   SOFTPLUS       1 if the step is softplus(dt + bias), 0 if it is dt + bias
//   GATED          1 if there is a gate z
//   D_OF_CHANNELS  1 if D is (h, p), 0 if it is (h,)

#include "hardware.cuh"
#include "hopper.cuh"
#include "wgmma.cuh"

// steps of softplus are not negative, so that they have a logarithm
constexpr bool STEPS_IN_EXPONENT = SOFTPLUS;

#include "ssd_common.cuh"
#include "ssd_chunk.cuh"
#include "ssd_fwd_prepare.cuh"
#include "ssd_segments.cuh"
#include "ssd_fwd_states.cuh"
#include "ssd_fwd_scan.cuh"
#include "ssd_fwd_short.cuh"
