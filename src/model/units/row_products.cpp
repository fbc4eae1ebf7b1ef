#include "model/units/row_products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/errors.h"
#include "device/compute_threads.h"
#include "kernels/row_products.h"
#include "model/ops/fused_ops.h"

namespace longshore::fused {
namespace {

// The fewest products for which another thread wakes.
constexpr int64_t kGrain = int64_t{1} << 15;
// Threads take a multiple of these outputs, which is one of the kernel's strips and a cache line.
constexpr int64_t kOutputs = 32;

// A matrix as the kernel reads it; owns a converted copy if there must be one.
struct Operand {
  at::Tensor values;
  kernels::ProductMatrix matrix;

  Operand(const StoredMatrix& of, bool transposed, at::ScalarType type) : values(of.stored) {
    const int64_t rows = of.size(0), columns = of.size(1);
    matrix = {.values = nullptr,
              .outputs = transposed ? columns : rows,
              .inputs = transposed ? rows : columns,
              .stride = columns,
              .transposed = transposed,
              .dtype = DType::kF32,
              .packed = {}};
    if (of.packed) {
      const bool rounds = type == at::kBFloat16 || of.packed->type == at::kBFloat16;
      matrix.dtype = rounds ? DType::kBF16 : DType::kF32;
      matrix.packed = of.packed->format;
      LONGSHORE_CHECK(values.is_contiguous());
    } else {
      // Values in bf16 are exact in fp32, so the kernel widens them itself.
      if (type == at::kBFloat16) values = values.to(type);
      if (values.stride(1) != 1 && columns > 1) values = values.contiguous();
      matrix.dtype = dtype_of(values);
      matrix.stride = values.stride(0);
    }
    matrix.values = values.const_data_ptr();
  }
};

void multiply(const at::Tensor& y, const at::Tensor& all_x, const StoredMatrix& of, bool transposed,
              const at::Tensor& bias, double factor, bool adds) {
  const Operand operand(of, transposed, all_x.scalar_type());
  const kernels::ProductMatrix& matrix = operand.matrix;
  const at::Tensor x = all_x.stride(1) == 1 || all_x.size(1) == 1 ? all_x : all_x.contiguous();
  LONGSHORE_CHECK(x.size(1) == matrix.inputs && y.size(1) == matrix.outputs &&
                  y.size(0) == x.size(0) && (y.stride(1) == 1 || y.size(1) == 1) &&
                  y.scalar_type() == x.scalar_type())
      << y.sizes() << " = " << x.sizes() << " x " << matrix.outputs;
  const at::Tensor wide_bias = bias.defined() ? bias.to(at::kFloat).contiguous() : at::Tensor();
  LONGSHORE_CHECK(!bias.defined() || bias.numel() == matrix.outputs);
  const kernels::ProductRows rows{
      .rows = x.size(0),
      .x_dtype = dtype_of(x),
      .x = x.const_data_ptr(),
      .x_stride = x.stride(0),
      .factor = static_cast<float>(factor),
      .bias = bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr,
      .adds = adds,
      .dtype = dtype_of(y),
      .y = y.mutable_data_ptr(),
      .y_stride = y.stride(0)};
  const int64_t elements = kernels::row_product_scratch();
  const at::Tensor scratch = at::empty({parallel_threads(), elements}, at::kFloat);
  float* const memory = scratch.mutable_data_ptr<float>();
  const int64_t work = std::max<int64_t>(1, rows.rows * matrix.inputs * kOutputs);
  parallel_for(0, (matrix.outputs + kOutputs - 1) / kOutputs, std::max<int64_t>(1, kGrain / work),
               [&](int64_t begin, int64_t end) {
                 kernels::row_products_cpu(matrix, rows, begin * kOutputs,
                                           std::min(end * kOutputs, matrix.outputs),
                                           memory + parallel_thread() * elements);
               });
}

}  // namespace

at::Tensor row_products(const at::Tensor& x, const StoredMatrix& matrix, bool transposed,
                        const at::Tensor& bias) {
  at::Tensor y =
      at::empty({x.size(0), matrix.size(transposed ? 1 : 0)}, x.options().requires_grad(false));
  multiply(y, x, matrix, transposed, bias, 1.0, /*adds=*/false);
  return y;
}

void add_row_products(const at::Tensor& y, const at::Tensor& x, const StoredMatrix& matrix,
                      bool transposed, double factor) {
  multiply(y, x, matrix, transposed, {}, factor, /*adds=*/true);
}

at::Tensor each_row(const at::Tensor& x,
                    const std::function<at::Tensor(const at::Tensor&)>& function) {
  const at::NoGradGuard no_grad;
  at::Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  parallel_for(0, x.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, x.size(1))),
               [&](int64_t begin, int64_t end) {
                 const at::AutoDispatchBelowADInplaceOrView no_graph;
                 for (int64_t row = begin; row < end; ++row) {
                   y.narrow(0, row, 1).copy_(function(x.narrow(0, row, 1)));
                 }
               });
  return y;
}

}  // namespace longshore::fused
