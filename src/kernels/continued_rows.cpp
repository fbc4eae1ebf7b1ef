#include "kernels/continued_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/continued_rows.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"
#include "kernels/softmax_vectors-inl.h"

#ifndef LONGSHORE_CONTINUED_ROWS
#define LONGSHORE_CONTINUED_ROWS
namespace longshore::kernels {

constexpr int64_t kRowsAtOnce = 16;  // about as many rows share a block of keys
constexpr int kTileRows = 4;         // rows that share a key in registers

inline int64_t positions_at_once(const ContinuedShape& shape) {
  return std::max<int64_t>(1, kRowsAtOnce / shape.group);
}
inline int64_t padded(int64_t dim) {
  return align_up(dim, int64_t{16});
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

// The rows of a call that are computed together: all heads of some positions. Row
// i * group + member is a head of position first + i.
template <typename T>
class RowsOfPositions {
 public:
  RowsOfPositions(const ContinuedShape& shape, const ContinuedHead& head, int64_t first,
                  int64_t count, float* scratch)
      : s_(shape), h_(head), first_(first), rows_(count * shape.group), width_(padded(shape.dim)) {
    const int64_t most = positions_at_once(shape) * shape.group;
    queries_ = scratch;
    results_ = queries_ + most * width_;
    scores_ = results_ + most * width_;
    largest_ = scores_ + most * kContinuedBlock;
    sums_ = largest_ + most;
    begin_rows();
  }

  HWY_INLINE void run() {
    const int64_t last = position_of(rows_ - 1);
    const int64_t from = first_seen(position_of(0)) / kContinuedBlock * kContinuedBlock;
    for (int64_t block = from; block <= last; block += kContinuedBlock) {
      for (int64_t row = 0; row < rows_;) {
        const Seen seen = seen_of(row, block);
        // Rows that see the same positions read each key once.
        int64_t same = 1;
        while (same < kTileRows && row + same < rows_ && seen_of(row + same, block) == seen) ++same;
        if (same < kTileRows) same = 1;
        if (seen.begin < seen.end) {
          if (same == kTileRows) {
            add_block<kTileRows>(row, seen, block);
          } else {
            add_block<1>(row, seen, block);
          }
        }
        row += same;
      }
    }
    finish();
  }

 private:
  // Positions of the sequence, in one block.
  struct Seen {
    int64_t begin, end;
    bool operator==(const Seen&) const = default;
  };

  int64_t position_of(int64_t row) const { return h_.before + first_ + row / s_.group; }
  int64_t first_seen(int64_t position) const {
    return s_.window == 0 ? 0 : std::max<int64_t>(0, position - s_.window + 1);
  }
  Seen seen_of(int64_t row, int64_t block) const {
    const int64_t position = position_of(row);
    return {std::max(block, first_seen(position)), std::min(block + kContinuedBlock, position + 1)};
  }
  const T* key_at(int64_t position) const {
    if (position < h_.before || h_.new_keys == nullptr) {
      return static_cast<const T*>(h_.keys) + position % h_.capacity * h_.cache_stride;
    }
    return static_cast<const T*>(h_.new_keys) + (position - h_.before) * h_.key_stride;
  }
  const T* value_at(int64_t position) const {
    if (position < h_.before || h_.new_values == nullptr) {
      return static_cast<const T*>(h_.values) + position % h_.capacity * h_.cache_stride;
    }
    return static_cast<const T*>(h_.new_values) + (position - h_.before) * h_.value_stride;
  }

  // Copies the queries, and starts the sums: a sink is a score that a row sees first.
  HWY_INLINE void begin_rows() {
    std::fill_n(queries_, rows_ * width_, 0.0f);
    std::fill_n(results_, rows_ * width_, 0.0f);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t member = row % s_.group;
      const T* const q =
          static_cast<const T*>(h_.q) + (first_ + row / s_.group) * h_.q_stride + member * s_.dim;
      for (int64_t d = 0; d < s_.dim; d += kGroup) {
        store(load(q + d, s_.dim - d), queries_ + row * width_ + d, s_.dim - d);
      }
      largest_[row] =
          h_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : h_.sinks[member];
      sums_[row] = h_.sinks == nullptr ? 0.0f : 1.0f;
    }
  }

  // Adds the positions that kRows rows see in a block.
  template <int kRows>
  HWY_INLINE void add_block(int64_t row, Seen seen, int64_t block) {
    for (int64_t at = seen.begin; at < seen.end; ++at) {
      multiply_key<kRows>(key_at(at), row, at - block);
    }
    const int64_t first = seen.begin - block, count = seen.end - seen.begin;
    float factors[kRows];
    for (int r = 0; r < kRows; ++r) {
      float* const scores = scores_ + (row + r) * kContinuedBlock + first;
      const float largest =
          std::max(largest_[row + r], finish_scores(s_.scale, s_.cap, count, scores));
      Group total = all(0.0f);
      for (int64_t i = 0; i < count; i += kGroup) {
        const Group weights = longshore::kernels::HWY_NAMESPACE::first(
            weights_of(load(scores + i, count - i) - all(largest)), count - i);
        total = total + weights;
        store(weights, scores + i, count - i);
      }
      factors[r] = std::exp(largest_[row + r] - largest);
      sums_[row + r] = sums_[row + r] * factors[r] + sum_in_halves(total);
      largest_[row + r] = largest;
    }
    for (int64_t d = 0; d < s_.dim; d += kGroup) add_values<kRows>(row, seen, block, d, factors);
  }

  template <int kRows>
  HWY_INLINE void multiply_key(const T* key, int64_t row, int64_t place) {
    Group sum[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = all(0.0f);
    const float* const queries = queries_ + row * width_;
    for (int64_t d = 0; d < s_.dim; d += kGroup) {
      const Group values = load(key + d, s_.dim - d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) add_product(sum[r], load(queries + r * width_ + d), values);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      scores_[(row + r) * kContinuedBlock + place] = sum_in_halves(sum[r]);
    }
  }

  template <int kRows>
  HWY_INLINE void add_values(int64_t row, Seen seen, int64_t block, int64_t d,
                             const float* factors) {
    Group sum[kRows];
    float* const results = results_ + row * width_ + d;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = load(results + r * width_) * all(factors[r]);
    for (int64_t at = seen.begin; at < seen.end; ++at) {
      const Group values = load(value_at(at) + d, s_.dim - d);
      const float* const weights = scores_ + row * kContinuedBlock + (at - block);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        add_product(sum[r], all(weights[r * kContinuedBlock]), values);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) store(sum[r], results + r * width_);
  }

  HWY_INLINE void finish() const {
    for (int64_t row = 0; row < rows_; ++row) {
      T* const out = static_cast<T*>(h_.out) + (first_ + row / s_.group) * h_.out_stride +
                     row % s_.group * s_.dim;
      const Group factor = all(1.0f / sums_[row]);
      for (int64_t d = 0; d < s_.dim; d += kGroup) {
        store(load(results_ + row * width_ + d) * factor, out + d, s_.dim - d);
      }
    }
  }

  const ContinuedShape& s_;
  const ContinuedHead& h_;
  int64_t first_, rows_;
  int64_t width_;              // of a row of queries and results: the dim, with zeros behind it
  float *queries_, *results_;  // [rows, width]
  float* scores_;              // [rows, kContinuedBlock]; then the weights
  float *largest_, *sums_;     // [rows]
};

void continued_rows(const ContinuedShape& shape, const ContinuedHead& head, int64_t begin,
                    int64_t end, float* scratch) {
  const int64_t step = positions_at_once(shape);
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    for (int64_t at = begin; at < end; at += step) {
      RowsOfPositions<decltype(type)>(shape, head, at, std::min(step, end - at), scratch).run();
    }
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(continued_rows);

int64_t continued_scratch(const ContinuedShape& shape) {
  const int64_t rows = positions_at_once(shape) * shape.group;
  return rows * (2 * padded(shape.dim) + kContinuedBlock + 2);
}

void continued_rows_cpu(const ContinuedShape& shape, const ContinuedHead& head, int64_t begin,
                        int64_t end, float* scratch) {
  HWY_DYNAMIC_DISPATCH(continued_rows)(shape, head, begin, end, scratch);
}

}  // namespace longshore::kernels
#endif
