// AdaptedMatrix: the values of one matrix with its adapter, outside of a unit: those that a merged
// model holds, and the norms that DoRA divides by. It computes in double and holds A and B, never a
// whole matrix. Plain value without LibTorch; const calls are safe from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/families/arch_spec.h"

namespace longshore {

class AdaptedMatrix {
 public:
  // Reads elements [begin, begin + out.size()) of the stored matrix, in row-major order.
  using Reader = std::function<void(int64_t begin, std::span<float> out)>;

  // `rows` and `columns` are those of the stored matrix, which is [in, out] if `transposed`. A and
  // B are as PEFT stores them; both empty: a new adapter, whose product is 0.
  AdaptedMatrix(double scaling, bool transposed, int64_t rows, int64_t columns,
                std::vector<float> a = {}, std::vector<float> b = {});

  // Returns the norm of the weights of outputs [begin, begin + count) in W + scaling * B A. `read`
  // gives W, of which it asks a bounded number of rows at a time.
  std::vector<double> norms(const Reader& read, int64_t begin, int64_t count) const;
  // Multiplies each output by magnitude / norm from now on (DoRA). `read` gives W.
  void set_magnitudes(const Reader& read, std::span<const float> magnitudes);
  // Turns elements of W from `begin` on into those of the merged matrix, rounded once.
  void merge(int64_t begin, std::span<float> values) const;

 private:
  int64_t outputs() const { return transposed_ ? columns_ : rows_; }
  // Adds scaling * B A to elements of one stored row.
  void add_product(int64_t row, int64_t column, std::span<double> values) const;

  double scaling_;
  bool transposed_;
  int64_t rows_, columns_;
  std::vector<float> a_, b_;
  std::vector<double> factors_;  // of the outputs; empty: 1
};

}  // namespace longshore
