// Scalar functions in fp32, as in kernels/elementwise.py.
//
// Compile-time macro:
//   SOFTPLUS  1 if the time step is softplus of its argument, 0 if it is the argument

constexpr float LOG2E = 1.4426950408889634f;

// exp(-|x|), the argument of softplus and sigmoid
__device__ __forceinline__ float exp_neg_abs(float x) { return exp2_fast(-fabsf(x) * LOG2E); }

// log(1 + exp(x)) = max(x, 0) + log(1 + e), the latter as e times a polynomial
__device__ __forceinline__ float softplus(float x, float e) {
    float p = fmaf(-0.003244009102f, e, 0.01985139027f);
    p = fmaf(p, e, -0.05695939809f);
    p = fmaf(p, e, 0.10603640974f);
    p = fmaf(p, e, -0.15305584669f);
    p = fmaf(p, e, 0.19675935805f);
    p = fmaf(p, e, -0.24954132736f);
    p = fmaf(p, e, 0.33329963684f);
    p = fmaf(p, e, -0.49999901652f);
    p = fmaf(p, e, 1.0f);
    return fmaf(e, p, fmaxf(x, 0.0f));
}

__device__ __forceinline__ float sigmoid(float x, float e) { return (x >= 0.0f ? 1.0f : e) * reciprocal(1.0f + e); }

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x, exp_neg_abs(x)); }

__device__ __forceinline__ float time_step(float x) {
    return SOFTPLUS ? softplus(x, exp_neg_abs(x)) : x;
}
