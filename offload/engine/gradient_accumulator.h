// GradientAccumulator: sums a unit's parameter gradients over the micro-batches of a step, in fp32
// on the device. `RunningSum` adds in the order of micro-batches. Owned by the engine; used by the
// compute thread.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "model/unit.h"
#include "shard/flat_layout.h"

namespace longshore {

// The fp32 sums of one unit, in the layout of its flat parameter's trainable front; padding is 0.
class GradientAccumulator {
 public:
  virtual ~GradientAccumulator() = default;
  virtual void clear() = 0;
  virtual void add(int32_t parameter, const at::Tensor& grad) = 0;
  virtual void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) = 0;
  virtual void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) = 0;
  virtual void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                              const at::Tensor& right) = 0;
  // Returns the finished sums, [trainable elements].
  virtual std::span<float> sums() = 0;
};

class RunningSum : public GradientAccumulator {
 public:
  // `memory` (on `device`) has >= layout.trainable_elements() * 4 bytes and outlives this.
  RunningSum(const UnitSpec& unit, const FlatLayout& layout, std::span<std::byte> memory,
             at::Device device = at::kCPU);

  void clear() override;
  void add(int32_t parameter, const at::Tensor& grad) override;
  void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) override;
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override;
  void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                      const at::Tensor& right) override;
  std::span<float> sums() override { return sums_; }

 private:
  std::span<float> sums_;
  at::Tensor all_;                      // the same memory as sums_
  std::vector<at::Tensor> parameters_;  // fp32 views in the parameters' shapes; undefined if frozen
};

}  // namespace longshore
