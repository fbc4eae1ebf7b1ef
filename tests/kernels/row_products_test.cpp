// Products of rows are those of the matrix's values, and a row has the same bits beside any others.
#include "kernels/row_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/mxfp4.h"
#include "base/nf4.h"
#include "base/number_formats.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/random_values.h"

namespace longshore::kernels {
namespace {

// How W is stored. One that is packed has these values' dtype.
struct Form {
  std::string name;
  DType dtype;
  std::optional<PackedFormat> packed;
  bool transposed = false;
  DType x = DType::kF32;
};

const std::vector<Form> kForms = {
    {"fp32", DType::kF32, {}},
    {"bf16, x fp32", DType::kBF16, {}},
    {"bf16", DType::kBF16, {}, false, DType::kBF16},
    {"transposed fp32", DType::kF32, {}, true},
    {"transposed bf16", DType::kBF16, {}, true, DType::kBF16},
    {"nf4 fp32", DType::kF32, PackedFormat::kNf4},
    {"nf4 bf16", DType::kBF16, PackedFormat::kNf4, false, DType::kBF16},
    {"nf4 bf16, x fp32", DType::kBF16, PackedFormat::kNf4},
    {"transposed nf4", DType::kF32, PackedFormat::kNf4, true},
    {"nf4-fp32-scales", DType::kBF16, PackedFormat::kNf4F32, false, DType::kBF16},
    {"fp8 fp32", DType::kF32, PackedFormat::kFp8},
    {"fp8 bf16", DType::kBF16, PackedFormat::kFp8, false, DType::kBF16},
    {"transposed fp8", DType::kBF16, PackedFormat::kFp8, true, DType::kBF16},
    {"mxfp4 fp32", DType::kF32, PackedFormat::kMxfp4, true},
    {"mxfp4 bf16", DType::kBF16, PackedFormat::kMxfp4, true, DType::kBF16},
};

std::vector<uint16_t> narrowed(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float value : values) out.push_back(float_to_bf16_nearest(value));
  return out;
}
std::vector<float> widened(const std::vector<uint16_t>& values) {
  std::vector<float> out;
  for (const uint16_t value : values) out.push_back(bf16_to_float(value));
  return out;
}

// Packs random values, or makes random bytes of a format that is only read.
std::vector<std::byte> random_packed(PackedFormat format, std::span<const int64_t> shape) {
  std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(format, shape)));
  const int64_t count = shape[0] * shape[1];
  const std::vector<float> values = random_values(count, 11, 3.0);
  if (format == PackedFormat::kNf4 || format == PackedFormat::kFp8) {
    encode_packed(
        format, shape,
        [&](int64_t begin, std::span<float> out) {
          std::copy_n(values.begin() + begin, out.size(), out.begin());
        },
        packed);
    return packed;
  }
  for (size_t i = 0; i < packed.size(); ++i) {
    packed[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
  }
  if (format == PackedFormat::kMxfp4) {
    const Mxfp4Layout layout(shape[0], shape[1]);
    for (Bytes i = 0; i < layout.scales_bytes(); ++i) {
      packed[static_cast<size_t>(layout.scales_begin() + i)] = static_cast<std::byte>(120 + i % 9);
    }
  } else {
    const int64_t blocks = Nf4F32Layout(count).blocks();
    std::memcpy(packed.data(), values.data(), static_cast<size_t>(4 * blocks));
  }
  return packed;
}

// A matrix of one form with its values, and 64 rows for it.
class Case {
 public:
  Case(const Form& form, int64_t outputs, int64_t inputs)
      : form_(form), outputs_(outputs), inputs_(inputs) {
    const std::vector<int64_t> shape =
        form.transposed ? std::vector{inputs, outputs} : std::vector{outputs, inputs};
    values_ = random_values(outputs * inputs, 3, 2.0);
    if (form.packed) {
      packed_ = random_packed(*form.packed, shape);
      decode_packed(*form.packed, shape, packed_, 0, values_);
    }
    if (form.dtype == DType::kBF16) {
      narrow_ = narrowed(values_);
      values_ = widened(narrow_);
    }
    x_ = random_values(kRows * inputs, 4, 2.0);
    if (form.x == DType::kBF16) {
      narrow_x_ = narrowed(x_);
      x_ = widened(narrow_x_);
    }
  }

  static constexpr int64_t kRows = 64;
  int64_t outputs() const { return outputs_; }

  // Returns the products of `rows` rows, which are those from `first` on and then the first ones
  // again, as fp32 [rows, outputs]. Outputs are computed in two parts, cut at `cut`.
  std::vector<float> products(int64_t first, int64_t rows, int64_t cut) const {
    std::vector<float> x, y(static_cast<size_t>(rows * outputs_), 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const auto at = x_.begin() + (first + r) % kRows * inputs_;
      x.insert(x.end(), at, at + inputs_);
    }
    const std::vector<uint16_t> narrow_x = narrowed(x);
    const ProductRows in{
        .rows = rows,
        .x_dtype = form_.x,
        .x = form_.x == DType::kBF16 ? static_cast<const void*>(narrow_x.data()) : x.data(),
        .x_stride = inputs_,
        .factor = 1.0f,
        .bias = nullptr,
        .adds = false,
        .dtype = DType::kF32,
        .y = y.data(),
        .y_stride = outputs_};
    std::vector<float> scratch(static_cast<size_t>(row_product_scratch()), NAN);
    row_products_cpu(matrix(), in, 0, cut, scratch.data());
    row_products_cpu(matrix(), in, cut, outputs_, scratch.data());
    return y;
  }
  ProductMatrix matrix() const {
    return {.values = form_.packed                  ? static_cast<const void*>(packed_.data())
                      : form_.dtype == DType::kBF16 ? static_cast<const void*>(narrow_.data())
                                                    : values_.data(),
            .outputs = outputs_,
            .inputs = inputs_,
            .stride = form_.transposed ? outputs_ : inputs_,
            .transposed = form_.transposed,
            .dtype = form_.dtype,
            .packed = form_.packed};
  }

  // Returns one product in fp64, and the sum of its magnitudes.
  std::pair<double, double> exact(int64_t row, int64_t output) const {
    double sum = 0.0, magnitudes = 0.0;
    for (int64_t k = 0; k < inputs_; ++k) {
      const int64_t at = form_.transposed ? k * outputs_ + output : output * inputs_ + k;
      const double product = static_cast<double>(values_[static_cast<size_t>(at)]) *
                             x_[static_cast<size_t>(row * inputs_ + k)];
      sum += product;
      magnitudes += std::fabs(product);
    }
    return {sum, magnitudes};
  }

 private:
  Form form_;
  int64_t outputs_, inputs_;
  std::vector<float> values_, x_;
  std::vector<uint16_t> narrow_, narrow_x_;
  std::vector<std::byte> packed_;
};

// Returns cases of odd sizes: inputs behind the last whole tile, and outputs behind the last one.
std::vector<Case> cases_of(const Form& form) {
  const int64_t step = form.packed == PackedFormat::kMxfp4 ? 32 : 1;
  std::vector<Case> cases;
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{37, 1312}, {5, 1061 / step * step}, {67, 96}, {1, 32}}) {
    cases.emplace_back(form, outputs, inputs);
  }
  return cases;
}

// Goal: products of every form are within 2e-6 of the sum of magnitudes of those in fp64, on every
// instruction set, however many rows there are.
TEST(RowProducts, AreThoseOfTheValues) {
  for (const Form& form : kForms) {
    for (const Case& one : cases_of(form)) {
      on_each_target([&](int64_t target) {
        for (const int64_t rows : {int64_t{1}, int64_t{7}, Case::kRows}) {
          const std::vector<float> got = one.products(0, rows, one.outputs() / 2);
          for (int64_t row = 0; row < rows; row += 3) {
            for (int64_t output = 0; output < one.outputs(); ++output) {
              const auto [sum, magnitudes] = one.exact(row, output);
              ASSERT_NEAR(got[static_cast<size_t>(row * one.outputs() + output)], sum,
                          2e-6 * magnitudes)
                  << form.name << ", " << hwy::TargetName(target) << ", " << one.outputs();
            }
          }
        }
      });
    }
  }
}

// Goal: a row has the same bits in batches of 1 to 64 rows, at every place in them, beside other
// rows, and whatever part of the outputs a thread takes.
TEST(RowProducts, OfARowDoNotDependOnTheOthers) {
  for (const Form& form : kForms) {
    for (const Case& one : cases_of(form)) {
      on_each_target([&](int64_t target) {
        const int64_t outputs = one.outputs();
        const std::vector<float> all = one.products(0, Case::kRows, 0);
        int64_t first = 0, cut = 0;
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 33, 63, 64, 65, 97}) {
          first = (first + 29) % Case::kRows;
          cut = (cut + 5) % (outputs + 1);
          const std::vector<float> got = one.products(first, rows, cut);
          for (int64_t row = 0; row < rows; ++row) {
            const int64_t same = (first + row) % Case::kRows;
            ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(row * outputs)],
                                  &all[static_cast<size_t>(same * outputs)],
                                  static_cast<size_t>(outputs) * sizeof(float)),
                      0)
                << form.name << ", " << hwy::TargetName(target) << ", row " << row << " of " << rows
                << " x " << outputs;
          }
        }
      });
    }
  }
}

// Goal: instruction sets that add products without rounding them first have the same bits, among
// them the one that multiplies pairs of bf16.
TEST(RowProducts, HaveTheSameBitsOnSetsWithFusedProducts) {
  for (const Form& form : kForms) {
    const Case one(form, 37, 1312);
    std::vector<float> expected;
    on_each_target([&](int64_t target) {
      if ((target & (HWY_AVX2 | HWY_AVX3)) == 0) return;
      const std::vector<float> got = one.products(0, 6, 3);
      if (expected.empty()) expected = got;
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
          << form.name << ", " << hwy::TargetName(target);
    });
  }
}

// Goal: the sum is multiplied by the factor, then gets the bias, then what is there already, and is
// rounded once.
TEST(RowProducts, AreScaledAddedAndRoundedOnce) {
  const std::vector<float> w = {1.0f, 2.0f, 3.0f, -1.0f}, x = {0.5f, 0.25f}, bias = {10.0f, 0.125f};
  std::vector<uint16_t> y = narrowed({100.0f, 0.00390625f});
  const ProductMatrix matrix{w.data(), 2, 2, 2, false, DType::kF32, {}};
  ProductRows rows{.rows = 1,
                   .x_dtype = DType::kF32,
                   .x = x.data(),
                   .x_stride = 2,
                   .factor = 2.0f,
                   .bias = bias.data(),
                   .adds = true,
                   .dtype = DType::kBF16,
                   .y = y.data(),
                   .y_stride = 2};
  std::vector<float> scratch(static_cast<size_t>(row_product_scratch()));
  row_products_cpu(matrix, rows, 0, 2, scratch.data());
  EXPECT_EQ(bf16_to_float(y[0]), 112.0f);
  EXPECT_EQ(y[1], float_to_bf16_nearest(2.0f * 1.25f + 0.125f + 0.00390625f));
  rows.adds = false;
  row_products_cpu(matrix, rows, 0, 2, scratch.data());
  EXPECT_EQ(bf16_to_float(y[0]), 12.0f);
}

}  // namespace
}  // namespace longshore::kernels
