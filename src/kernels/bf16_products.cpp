#include "kernels/bf16_products.h"

#include <cstring>

#include "base/errors.h"

#if defined(__x86_64__)
#include <immintrin.h>

// The functions below are compiled for these instructions, and run only where they exist.
#define LONGSHORE_BF16_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace longshore::kernels {
namespace {

constexpr int64_t kInputs = 32;  // of an instruction
constexpr int64_t kSums = 16;

LONGSHORE_BF16_PAIRS inline __m512bh pairs_at(const Bf16* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}
LONGSHORE_BF16_PAIRS inline __m512bh first_pairs_at(const Bf16* from, __mmask32 which) {
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(which, from));
}

template <int kRows, int kOutputs>
LONGSHORE_BF16_PAIRS void add_tile(Lines<Bf16> x, Lines<Bf16> w, int64_t count, float* sums) {
  __m512 sum[kRows][kOutputs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) {
      sum[r][o] = _mm512_loadu_ps(sums + (r * kTileOutputs + o) * kSums);
    }
  }
  const int64_t whole = count / kInputs * kInputs;
  for (int64_t k = 0; k < whole; k += kInputs) {
    __m512bh values[kOutputs];
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) values[o] = pairs_at(w.values + o * w.stride + k);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512bh row = pairs_at(x.values + r * x.stride + k);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o) sum[r][o] = _mm512_dpbf16_ps(sum[r][o], row, values[o]);
    }
  }
  if (whole < count) {
    const auto which = static_cast<__mmask32>((uint64_t{1} << (count - whole)) - 1);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512bh row = first_pairs_at(x.values + r * x.stride + whole, which);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o) {
        const __m512bh value = first_pairs_at(w.values + o * w.stride + whole, which);
        sum[r][o] = _mm512_dpbf16_ps(sum[r][o], row, value);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) {
      _mm512_storeu_ps(sums + (r * kTileOutputs + o) * kSums, sum[r][o]);
    }
  }
}

template <int kOutputs>
LONGSHORE_BF16_PAIRS void add_outputs(Lines<Bf16> x, int64_t rows, Lines<Bf16> w, int64_t count,
                                      float* sums) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    add_tile<4, kOutputs>(x.from(row), w, count, sums + row * kTileOutputs * kSums);
  }
  if (row + 2 <= rows) {
    add_tile<2, kOutputs>(x.from(row), w, count, sums + row * kTileOutputs * kSums);
    row += 2;
  }
  if (row < rows) {
    add_tile<1, kOutputs>(x.from(row), w, count, sums + row * kTileOutputs * kSums);
  }
}

}  // namespace

bool multiplies_bf16_pairs() {
  static const bool known = __builtin_cpu_supports("avx512bf16") != 0 &&
                            __builtin_cpu_supports("avx512bw") != 0 &&
                            __builtin_cpu_supports("avx512vl") != 0;
  return known;
}

void add_bf16_block(Lines<Bf16> x, int64_t rows, Lines<Bf16> w, int64_t outputs, int64_t count,
                    float* sums) {
  if (outputs == kTileOutputs) return add_outputs<kTileOutputs>(x, rows, w, count, sums);
  for (int64_t o = 0; o < outputs; ++o) {
    add_outputs<1>(x, rows, w.from(o), count, sums + o * kSums);
  }
}

}  // namespace longshore::kernels

#else

namespace longshore::kernels {

bool multiplies_bf16_pairs() {
  return false;
}

void add_bf16_block(Lines<Bf16>, int64_t, Lines<Bf16>, int64_t, int64_t, float*) {
  LONGSHORE_CHECK(false) << "this processor does not multiply pairs of bf16";
}

}  // namespace longshore::kernels

#endif
