// A row that continues a sequence: what a Linear computes for it has the same bits beside any other
// rows, and is what training computes.
#include "model/units/row_products.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/packed_format.h"
#include "model/units/linear.h"
#include "tests/fakes/cpu_branches.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 64;

// Sets the number of threads while it lives.
struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { at::set_num_threads(before); }
  int before;
};

// Batches of rows: one, all in another order, and some between others.
std::vector<at::Tensor> row_choices() {
  return {at::tensor({5}, at::kLong), at::tensor({63}, at::kLong),
          at::arange(kRows - 1, -1, -1, at::kLong), at::tensor({9, 2, 40}, at::kLong),
          at::arange(3, 36, at::kLong)};
}

double error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

// Expects that function(rows) is those rows of function(all rows), bit for bit, with one and with
// two threads.
template <typename Function>
void expect_independent_rows(const Function& function, const std::string& what) {
  const std::vector<at::Tensor> all = function(at::arange(kRows, at::kLong));
  for (const int threads : {1, 2}) {
    const Threads own(threads);
    for (const at::Tensor& rows : row_choices()) {
      const std::vector<at::Tensor> some = function(rows);
      ASSERT_EQ(some.size(), all.size());
      for (size_t i = 0; i < some.size(); ++i) {
        EXPECT_TRUE(at::equal(some[i], all[i].index_select(0, rows)))
            << what << ", tensor " << i << " of " << rows.size(0) << " rows from "
            << rows[0].item<int64_t>() << " on, " << threads << " threads";
      }
    }
  }
}

enum class Kind { kPlain, kBias, kTransposed, kLora, kDora, kPacked, kPackedLora, kStacked };

StoredMatrix packed_matrix(int64_t rows, int64_t columns, at::ScalarType type) {
  const std::vector<int64_t> shape = {rows, columns};
  const at::Tensor values = at::randn(shape);
  at::Tensor bytes = at::empty({packed_bytes(PackedFormat::kNf4, shape)}, at::kByte);
  encode_packed(
      PackedFormat::kNf4, shape,
      [&](int64_t begin, std::span<float> out) {
        std::copy_n(values.const_data_ptr<float>() + begin, out.size(), out.begin());
      },
      {static_cast<std::byte*>(bytes.mutable_data_ptr()), static_cast<size_t>(bytes.numel())});
  return {.stored = bytes,
          .packed = std::make_shared<PackedForm>(PackedForm{PackedFormat::kNf4, type, shape})};
}

Linear make_linear(Kind kind, int64_t outputs, int64_t inputs, at::ScalarType type) {
  at::manual_seed(17);
  Linear linear;
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(type); };
  linear.transposed = kind == Kind::kTransposed;
  linear.weight = {.stored =
                       linear.transposed ? random({inputs, outputs}) : random({outputs, inputs})};
  if (kind == Kind::kPacked || kind == Kind::kPackedLora) {
    linear.weight = packed_matrix(outputs, inputs, type);
  }
  if (kind == Kind::kBias || kind == Kind::kDora) linear.bias = random({outputs});
  if (kind == Kind::kLora || kind == Kind::kDora || kind == Kind::kPackedLora) {
    linear.lora.a = random({5, inputs});
    linear.lora.b = random({outputs, 5});
    linear.lora.scaling = 0.75;
  }
  if (kind == Kind::kDora) linear.lora.magnitude = at::rand({outputs}).add_(0.5).to(type);
  if (kind == Kind::kStacked) {
    linear.weight.stored = random({3, outputs, inputs});
    linear.bias = random({3, outputs});
    linear.lora.a = random({3, 5, inputs});
    linear.lora.b = random({3, outputs, 5});
    linear = linear.of_matrix(1);
  }
  linear.set_norms();
  return linear;
}

// Goal: products of a Linear by row are those of training (within 1e-5 of the largest in fp32,
// within rounding in bf16), whatever it has, and a row does not depend on the others.
TEST(RowProductsOfLinear, AreThoseOfTrainingAndIndependent) {
  const fakes::CpuBranches cpu;
  const ContinuedSequences continued;
  MicroBatch batch;
  batch.continued = &continued;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Kind kind : {Kind::kPlain, Kind::kBias, Kind::kTransposed, Kind::kLora, Kind::kDora,
                            Kind::kPacked, Kind::kPackedLora, Kind::kStacked}) {
      Linear linear = make_linear(kind, 83, 208, type);
      const at::Tensor x = at::randn({kRows, 208}).to(type);
      const at::Tensor expected = linear.product(x);
      linear.continue_rows(batch, x);
      ASSERT_TRUE(linear.by_row);
      const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + " in " +
                               std::string(c10::toString(type));
      EXPECT_LE(error(linear.product(x), expected), type == at::kFloat ? 1e-5 : 1e-2) << what;
      expect_independent_rows(
          [&](const at::Tensor& rows) {
            return std::vector{linear.product(x.index_select(0, rows))};
          },
          what);
    }
  }
}

// Goal: a batch that continues nothing, or a device that is none of the CPU's, computes as before.
TEST(RowProductsOfLinear, NeedABatchThatContinuesSequences) {
  Linear linear = make_linear(Kind::kLora, 8, 16, at::kFloat);
  linear.continue_rows({}, linear.weight.stored);
  EXPECT_FALSE(linear.by_row);
  EXPECT_FALSE(linear.lora.by_row);
}

// Goal: the rows of a table with an adapter do not depend on the other tokens.
TEST(RowProductsOfLinear, GiveRowsOfATableWithAnAdapter) {
  const fakes::CpuBranches cpu;
  const ContinuedSequences continued;
  MicroBatch batch;
  batch.continued = &continued;
  Linear table;
  at::manual_seed(3);
  table.weight = {.stored = at::randn({70, 40})};
  table.lora.a = at::randn({70, 6}).t();
  table.lora.b = at::randn({40, 6});
  table.transposed = true;
  const at::Tensor ids = at::arange(kRows, at::kLong);
  const at::Tensor expected = table.rows(ids);
  table.continue_rows(batch, table.weight.stored);
  EXPECT_LE(error(table.rows(ids), expected), 1e-6);
  expect_independent_rows([&](const at::Tensor& rows) { return std::vector{table.rows(rows)}; },
                          "table");
}

}  // namespace
}  // namespace longshore
