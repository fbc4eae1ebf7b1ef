// MappedSink: a GradientSink for a unit inside a larger unit; it maps the inner parameter indices
// to the outer ones. Lives for one call; compute thread only.
#pragma once

#include <vector>

#include "model/unit.h"

namespace longshore {

class MappedSink final : public GradientSink {
 public:
  // Both arguments must outlive the sink.
  MappedSink(GradientSink* sink, const std::vector<int32_t>* parameters)
      : sink_(sink), parameters_(parameters) {}

  bool wants(int32_t parameter) const override { return sink_->wants(index(parameter)); }
  void add(int32_t parameter, const at::Tensor& grad) override {
    sink_->add(index(parameter), grad);
  }
  void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) override {
    sink_->add_rows(index(parameter), rows, values);
  }
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override {
    sink_->add_product(index(parameter), left, right);
  }
  void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                      const at::Tensor& right) override {
    sink_->add_product_at(index(parameter), matrix, left, right);
  }

 private:
  int32_t index(int32_t parameter) const { return parameters_->at(static_cast<size_t>(parameter)); }

  GradientSink* sink_;
  const std::vector<int32_t>* parameters_;
};

}  // namespace longshore
