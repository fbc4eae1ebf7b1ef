// UnitParameters: the parameters of a unit as its slot stores them, and StoredMatrix, one of them.
// A frozen matrix may be stored packed (base/packed_format.h): its values then exist only where a
// product reads them, one matrix at a time. Views; whoever calls the unit owns the memory. Compute
// thread, or a thread of autograd.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/packed_format.h"

namespace longshore {

// How a matrix, or each of stacked ones, is packed. Its model and the graphs that read it share it.
struct PackedForm {
  PackedFormat format = PackedFormat::kNf4;
  at::ScalarType type = at::kFloat;  // of the values
  std::vector<int64_t> shape;        // of the values: [rows, columns], or [matrices, rows, columns]
};
using SharedForm = std::shared_ptr<const PackedForm>;

struct StoredMatrix {
  at::Tensor stored = {};  // the values, or packed bytes, a row of them for each stacked matrix
  SharedForm packed = {};  // null: these are the values
  bool of_stack = false;   // this is one matrix of a stack, whose shape `packed` has

  bool defined() const { return stored.defined(); }
  // Returns a dimension of the values.
  int64_t size(int64_t dimension) const;
  // Returns the values: `stored` itself, or new memory of their size without a gradient.
  at::Tensor values() const;
  // Returns one of stacked matrices, whose values are [rows, columns].
  StoredMatrix of_matrix(int64_t matrix) const;
};

class UnitParameters {
 public:
  UnitParameters() = default;
  // All are stored as their values. The vector must outlive this.
  UnitParameters(const std::vector<at::Tensor>& values) : stored_(values) {}
  // `forms` are those of the first parameters, in their order; null: stored as its values.
  UnitParameters(std::span<const at::Tensor> stored, std::span<const SharedForm> forms)
      : stored_(stored), forms_(forms) {}

  size_t size() const { return stored_.size(); }
  StoredMatrix at(size_t index) const {
    return {stored_[index], index < forms_.size() ? forms_[index] : nullptr};
  }
  // Returns the values: new memory if they are packed.
  at::Tensor operator[](size_t index) const { return at(index).values(); }
  // Returns the tensors as they are stored. Those of trained parameters are their values.
  std::span<const at::Tensor> stored() const { return stored_; }
  // Returns the same tensors with the forms of the first ones.
  UnitParameters stored_as(std::span<const SharedForm> forms) const { return {stored_, forms}; }
  // Returns the first `count` parameters, or those from `begin` on.
  UnitParameters first(size_t count) const;
  UnitParameters from(size_t begin) const;

 private:
  std::span<const at::Tensor> stored_;
  std::span<const SharedForm> forms_;
};

// PickedParameters: some parameters of a unit, in another order. Must outlive what it returns.
class PickedParameters {
 public:
  PickedParameters(UnitParameters parameters, const std::vector<int32_t>& indices);
  UnitParameters get() const { return {stored_, forms_}; }

 private:
  std::vector<at::Tensor> stored_;
  std::vector<SharedForm> forms_;
};

}  // namespace longshore
