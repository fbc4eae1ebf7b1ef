#include "kernels/row_products.h"

#include <algorithm>
#include <cstring>

#include "base/cpu_targets.h"
#include "base/errors.h"
#include "base/mxfp4.h"
#include "kernels/bf16_products.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_products.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"
#include "kernels/packed_groups-inl.h"

#ifndef LONGSHORE_ROW_PRODUCTS
#define LONGSHORE_ROW_PRODUCTS
namespace longshore::kernels {

constexpr int64_t kBlockRows = 64;     // rows that share one reading of W
constexpr int64_t kTileBytes = 2048;   // of a row of W whose values stay in the L1 cache
constexpr int64_t kChunkInputs = 128;  // [Note: order of a row's sums]
constexpr int64_t kStrip = 32;         // outputs of a matrix that lies by inputs, at a time
constexpr int64_t kPartialSums = 16;   // of an output

// The parts of the scratch, in floats: values of W, and sums.
constexpr int64_t kValuesElements =
    std::max<int64_t>(kTileOutputs * kTileBytes / 4, kChunkInputs* kStrip);
constexpr int64_t kSumElements = kBlockRows * std::max(kTileOutputs * kPartialSums, kStrip);

// Inputs of a tile.
template <typename T>
constexpr int64_t kTileInputs = kTileBytes / static_cast<int64_t>(sizeof(T));

// Finishes the sum of one output of one row, and writes it.
template <typename T>
inline void finish_sum(const ProductRows& p, int64_t row, int64_t output, float sum) {
  T* const y = static_cast<T*>(p.y) + row * p.y_stride + output;
  sum *= p.factor;
  if (p.bias != nullptr) sum += p.bias[output];
  if (p.adds) sum += to_float(*y);
  *y = rounded_to<T>(sum);
}

}  // namespace longshore::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

HWY_INLINE void add_product(Group& sum, const Group& a, const Group& b) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < kParts; ++i) {
    sum.parts[i] = hn::MulAdd(a.parts[i], b.parts[i], sum.parts[i]);
  }
}

// Thirty-two neighbours in bf16: those with odd and those with even numbers.
struct Pairs {
  Group odd, even;
};

// Returns what a step along the inputs reads of a row: sixteen values in fp32, or pairs in bf16.
HWY_INLINE Group step_at(const float* from) {
  return load(from);
}
HWY_INLINE Pairs step_at(const Bf16* from) {
  Pairs out;
#pragma GCC unroll 4
  for (int64_t i = 0; i < kParts; ++i) {
    const auto* const words = reinterpret_cast<const uint32_t*>(from) + i * kLanes;
    const WordVector both = hn::LoadU(Words(), words);
    out.odd.parts[i] = hn::BitCast(Floats(), hn::And(both, hn::Set(Words(), 0xffff0000u)));
    out.even.parts[i] = hn::BitCast(Floats(), hn::ShiftLeft<16>(both));
  }
  return out;
}
HWY_INLINE void add_product(Group& sum, const Pairs& a, const Pairs& b) {
  add_product(sum, a.odd, b.odd);
  add_product(sum, a.even, b.even);
}

template <typename T>
constexpr int64_t kStepInputs = kPartialSums * 4 / static_cast<int64_t>(sizeof(T));

// Reads a step of which `left` values are in memory; the others are zeros.
template <typename T>
HWY_INLINE auto step_at(const T* from, int64_t left) {
  T values[kStepInputs<T>] = {};
  std::memcpy(values, from, static_cast<size_t>(left) * sizeof(T));
  return step_at(values);
}

// Adds the products of `count` inputs to the partial sums of each of kRows x kOutputs results;
// those of a row are neighbours in `sums`.
template <int kRows, int kOutputs, typename T>
HWY_INLINE void add_tile(Lines<T> x, Lines<T> w, int64_t count, float* sums) {
  Group sum[kRows][kOutputs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) sum[r][o] = load(sums + (r * kTileOutputs + o) * kGroup);
  }
  const auto add = [&](auto read) HWY_ATTR {
    decltype(read(w.values)) values[kOutputs];
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) values[o] = read(w.values + o * w.stride);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const auto row = read(x.values + r * x.stride);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o) add_product(sum[r][o], row, values[o]);
    }
  };
  int64_t k = 0;
  for (; k + kStepInputs<T> <= count; k += kStepInputs<T>) {
    add([k](const T* line) HWY_ATTR { return step_at(line + k); });
  }
  if (k < count) {
    add([k, count](const T* line) HWY_ATTR { return step_at(line + k, count - k); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) store(sum[r][o], sums + (r * kTileOutputs + o) * kGroup);
  }
}

// Vectors of fewer than 16 values have registers for two outputs of two rows.
constexpr int kMostRows = kParts == 1 ? 4 : 2, kMostOutputs = kParts == 1 ? 4 : 2;

template <int kRows, typename T>
HWY_INLINE void add_rows_tile(Lines<T> x, Lines<T> w, int64_t outputs, int64_t count, float* sums) {
  int64_t o = 0;
  for (; o + kMostOutputs <= outputs; o += kMostOutputs) {
    add_tile<kRows, kMostOutputs>(x, w.from(o), count, sums + o * kGroup);
  }
  for (; o < outputs; ++o) add_tile<kRows, 1>(x, w.from(o), count, sums + o * kGroup);
}

// Does what add_bf16_block does, in fp32 too.
template <typename T>
HWY_INLINE void add_block(Lines<T> x, int64_t rows, Lines<T> w, int64_t outputs, int64_t count,
                          float* sums) {
  int64_t row = 0;
  const auto sums_at = [&](int64_t r) { return sums + r * kTileOutputs * kGroup; };
  for (; row + kMostRows <= rows; row += kMostRows) {
    add_rows_tile<kMostRows>(x.from(row), w, outputs, count, sums_at(row));
  }
  for (; row < rows; ++row) add_rows_tile<1>(x.from(row), w, outputs, count, sums_at(row));
}

// Returns the values of some outputs of a matrix that lies by outputs, from input k on: in the
// matrix itself, or in `values` if they are packed or of another type.
template <typename T>
HWY_INLINE Lines<T> read_outputs(const ProductMatrix& w, int64_t output, int64_t outputs, int64_t k,
                                 int64_t count, float* scratch) {
  constexpr bool kIsF32 = sizeof(T) == sizeof(float);
  if (!w.packed && (w.dtype == DType::kF32) == kIsF32) {
    return Lines<T>{static_cast<const T*>(w.values), w.stride}.from(output, k);
  }
  T* const values = reinterpret_cast<T*>(scratch);
  for (int64_t o = 0; o < outputs; ++o) {
    T* const line = values + o * kTileInputs<T>;
    if (w.packed) {
      unpack_inputs(w, output + o, k, count, line);
      continue;
    }
    const Bf16* const from = static_cast<const Bf16*>(w.values) + (output + o) * w.stride + k;
    for (int64_t i = 0; i < count; i += kGroup) {
      store(load(from + i, count - i), line + i, count - i);
    }
  }
  return {values, kTileInputs<T>};
}

template <typename Y>
HWY_INLINE void finish_sums(const ProductRows& p, int64_t first, int64_t rows, int64_t output,
                            int64_t outputs, const float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      finish_sum<Y>(p, first + r, output + o,
                    sum_in_halves(load(sums + (r * kTileOutputs + o) * kGroup)));
    }
  }
}

// A matrix that lies by outputs.
template <typename T, typename Y>
HWY_INLINE void by_outputs(const ProductMatrix& w, const ProductRows& p, int64_t begin, int64_t end,
                           float* values, float* sums) {
  const Lines<T> all_x{static_cast<const T*>(p.x), p.x_stride};
  const bool in_pairs = sizeof(T) == sizeof(Bf16) && kParts == 1 && multiplies_bf16_pairs();
  for (int64_t first = 0; first < p.rows; first += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, p.rows - first);
    for (int64_t output = begin; output < end; output += kTileOutputs) {
      const int64_t outputs = std::min(kTileOutputs, end - output);
      std::fill_n(sums, rows * kTileOutputs * kGroup, 0.0f);
      for (int64_t k = 0; k < w.inputs; k += kTileInputs<T>) {
        const int64_t count = std::min(kTileInputs<T>, w.inputs - k);
        const Lines<T> lines = read_outputs<T>(w, output, outputs, k, count, values);
        const Lines<T> x = all_x.from(first, k);
        if constexpr (sizeof(T) == sizeof(Bf16)) {
          if (in_pairs) {
            add_bf16_block(x, rows, lines, outputs, count, sums);
            continue;
          }
        }
        add_block(x, rows, lines, outputs, count, sums);
      }
      finish_sums<Y>(p, first, rows, output, outputs, sums);
    }
  }
}

// Writes the values [count, kStrip] of a matrix that lies by inputs, from input k on; those behind
// `outputs` are zeros.
HWY_INLINE void read_inputs(const ProductMatrix& w, int64_t output, int64_t outputs, int64_t k,
                            int64_t count, float* values) {
  for (int64_t i = k; i < k + count; ++i, values += kStrip) {
    std::fill(values + outputs, values + kStrip, 0.0f);
    if (w.packed) {
      decode_values(w, i * w.outputs + output, outputs, values);
      continue;
    }
    const int64_t at = i * w.stride + output;
    with_type(w.dtype, [&](auto type) HWY_ATTR {
      const auto* const from = static_cast<const decltype(type)*>(w.values) + at;
      for (int64_t o = 0; o < outputs; o += kGroup) {
        store(load(from + o, outputs - o), values + o, outputs - o);
      }
    });
  }
}

// Adds the products of one row and a chunk of inputs to the sums of a strip of outputs.
template <typename T>
HWY_INLINE void add_chunk(const T* x, int64_t count, const float* values, float* sums) {
  constexpr int64_t kGroups = kStrip / kGroup;
  Group chunk[kGroups];
  for (Group& one : chunk) one = all(0.0f);
  for (int64_t k = 0; k < count; ++k, values += kStrip) {
    const Group input = all(to_float(x[k]));
    for (int64_t i = 0; i < kGroups; ++i) add_product(chunk[i], input, load(values + i * kGroup));
  }
  for (int64_t i = 0; i < kGroups; ++i) {
    store(load(sums + i * kGroup) + chunk[i], sums + i * kGroup);
  }
}

// A matrix that lies by inputs. It is always read to scratch first: slower, but few families have
// such matrices.
template <typename T, typename Y>
HWY_INLINE void by_inputs(const ProductMatrix& w, const ProductRows& p, int64_t begin, int64_t end,
                          float* values, float* sums) {
  const Lines<T> all_x{static_cast<const T*>(p.x), p.x_stride};
  for (int64_t first = 0; first < p.rows; first += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, p.rows - first);
    for (int64_t output = begin; output < end; output += kStrip) {
      const int64_t outputs = std::min(kStrip, end - output);
      std::fill_n(sums, rows * kStrip, 0.0f);
      for (int64_t k = 0; k < w.inputs; k += kChunkInputs) {
        const int64_t count = std::min(kChunkInputs, w.inputs - k);
        read_inputs(w, output, outputs, k, count, values);
        for (int64_t r = 0; r < rows; ++r) {
          add_chunk(all_x.from(first + r, k).values, count, values, sums + r * kStrip);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < outputs; ++o) {
          finish_sum<Y>(p, first + r, output + o, sums[r * kStrip + o]);
        }
      }
    }
  }
}

void row_products(const ProductMatrix& w, const ProductRows& p, int64_t begin, int64_t end,
                  float* scratch) {
  float* const sums = scratch + kValuesElements;
  const bool inputs_lie_together = !w.transposed || w.packed == PackedFormat::kMxfp4;
  with_type(p.x_dtype, [&](auto x_type) HWY_ATTR {
    with_type(p.dtype, [&](auto y_type) HWY_ATTR {
      using T = decltype(x_type);
      using Y = decltype(y_type);
      if (inputs_lie_together) {
        by_outputs<T, Y>(w, p, begin, end, scratch, sums);
      } else {
        by_inputs<T, Y>(w, p, begin, end, scratch, sums);
      }
    });
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(row_products);

int64_t row_product_scratch() {
  return kValuesElements + kSumElements;
}

void row_products_cpu(const ProductMatrix& matrix, const ProductRows& rows, int64_t begin,
                      int64_t end, float* scratch) {
  LONGSHORE_CHECK(matrix.packed != PackedFormat::kMxfp4 ||
                  (matrix.transposed && matrix.inputs % Mxfp4Layout::kGroup == 0));
  LONGSHORE_CHECK(rows.x_dtype == DType::kF32 || matrix.dtype == DType::kBF16);
  LONGSHORE_CHECK(begin >= 0 && end <= matrix.outputs) << begin << " to " << end;
  HWY_DYNAMIC_DISPATCH(row_products)(matrix, rows, begin, end, scratch);
}

}  // namespace longshore::kernels
#endif
