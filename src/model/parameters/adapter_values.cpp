#include "model/parameters/adapter_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int64_t kNormElements = int64_t{1} << 20;  // of a matrix that is read for its norms

}  // namespace

AdaptedMatrix::AdaptedMatrix(double scaling, bool transposed, int64_t rows, int64_t columns,
                             std::vector<float> a, std::vector<float> b)
    : scaling_(scaling),
      transposed_(transposed),
      rows_(rows),
      columns_(columns),
      a_(std::move(a)),
      b_(std::move(b)) {
  LONGSHORE_CHECK(a_.empty() == b_.empty()) << "A without B";
}

// The sum runs in the order of the rank.
void AdaptedMatrix::add_product(int64_t row, int64_t column, std::span<double> values) const {
  if (a_.empty()) return;
  const auto rank = static_cast<int64_t>(b_.size()) / outputs();
  const int64_t in = transposed_ ? rows_ : columns_;
  std::vector<double> products(values.size());
  for (int64_t r = 0; r < rank; ++r) {
    // Along a row of the stored matrix either the output or the input stays the same.
    const double factor = transposed_ ? a_[static_cast<size_t>(r * in + row)]
                                      : b_[static_cast<size_t>(row * rank + r)];
    const float* const others = transposed_ ? &b_[static_cast<size_t>(column * rank + r)]
                                            : &a_[static_cast<size_t>(r * in + column)];
    const size_t stride = transposed_ ? static_cast<size_t>(rank) : 1;
    for (size_t i = 0; i < products.size(); ++i) products[i] += factor * others[i * stride];
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] += scaling_ * products[i];
}

std::vector<double> AdaptedMatrix::norms(const Reader& read, int64_t begin, int64_t count) const {
  LONGSHORE_CHECK(begin >= 0 && count >= 0 && begin + count <= outputs()) << begin << " " << count;
  std::vector<double> squares(static_cast<size_t>(count));
  // Outputs are rows of the stored matrix, or parts of all its rows.
  const int64_t first = transposed_ ? 0 : begin, end = transposed_ ? rows_ : begin + count;
  const int64_t column = transposed_ ? begin : 0, width = transposed_ ? count : columns_;
  const int64_t most = std::max<int64_t>(1, kNormElements / columns_);
  std::vector<float> piece;
  for (int64_t row = first; row < end; row += most) {
    const int64_t rows = std::min(most, end - row);
    piece.resize(static_cast<size_t>(rows * columns_));
    read(row * columns_, piece);
    for (int64_t i = 0; i < rows; ++i) {
      const auto stored = piece.begin() + i * columns_ + column;
      std::vector<double> values(stored, stored + width);
      add_product(row + i, column, values);
      for (size_t j = 0; j < values.size(); ++j) {
        squares[transposed_ ? j : static_cast<size_t>(row + i - begin)] += values[j] * values[j];
      }
    }
  }
  for (double& value : squares) value = std::sqrt(value);
  return squares;
}

void AdaptedMatrix::set_magnitudes(const Reader& read, std::span<const float> magnitudes) {
  factors_ = norms(read, 0, outputs());
  LONGSHORE_CHECK(factors_.size() == magnitudes.size()) << magnitudes.size() << " magnitudes";
  for (size_t i = 0; i < factors_.size(); ++i) {
    // An output whose weights are all zero stays zero, as in a unit.
    constexpr double kLeast = std::numeric_limits<float>::min();
    factors_[i] = magnitudes[i] / std::max(factors_[i], kLeast);
  }
}

void AdaptedMatrix::merge(int64_t begin, std::span<float> values) const {
  std::vector<double> merged;
  for (size_t done = 0; done < values.size(); done += merged.size()) {
    const int64_t at = begin + static_cast<int64_t>(done);
    const int64_t row = at / columns_, column = at % columns_;
    const std::span<float> rest = values.subspan(done);
    const auto part = rest.first(std::min(static_cast<size_t>(columns_ - column), rest.size()));
    merged.assign(part.begin(), part.end());
    add_product(row, column, merged);
    for (size_t i = 0; i < part.size(); ++i) {
      const size_t output =
          transposed_ ? static_cast<size_t>(column) + i : static_cast<size_t>(row);
      part[i] = static_cast<float>(factors_.empty() ? merged[i] : factors_[output] * merged[i]);
    }
  }
}

}  // namespace longshore
