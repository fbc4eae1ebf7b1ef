#include "model/attention/document_attention.h"

#include "base/errors.h"
#include "device/gpu_tensors.h"
#include "model/attention/cpu_attention.h"
#include "model/attention/gpu_attention.h"

namespace longshore {

void keep_attention(const AttentionResult& result, const AttentionPlace& place,
                    const AttentionShape& shape, const std::vector<int64_t>& document_starts) {
  place.out.copy_(result.out);
  if (takes_gpu_form(place.out)) {
    keep_sums_gpu(result, place, shape, document_starts);
  } else {
    place.sums.copy_(result.sums.at(0));
  }
}

AttentionResult kept_attention(const AttentionPlace& place, const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts) {
  // The place's own tensor gets no graph.
  AttentionResult result{.out = place.out.detach(), .sums = {place.sums}};
  if (!takes_gpu_form(place.out)) return result;
  result.sums = kept_sums_gpu(place, shape, document_starts);
  return result;
}

AttentionResult attend_at(const AttentionPlace& place, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionShape& shape,
                          const std::vector<int64_t>& document_starts, const at::Tensor& sinks) {
  if (place.filled) return kept_attention(place, shape, document_starts);
  AttentionResult result = attend_forward(q, k, v, shape, document_starts, sinks);
  if (place.out.defined()) keep_attention(result, place, shape, document_starts);
  return result;
}

AttentionResult attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts,
                               const at::Tensor& sinks) {
  LONGSHORE_CHECK(!document_starts.empty() && document_starts.back() == q.size(0));
  LONGSHORE_CHECK(shape.cap == 0.0 || !sinks.defined()) << "capped scores and sinks";
  if (!takes_gpu_form(q)) return attend_forward_cpu(q, k, v, shape, document_starts, sinks);
  return attend_forward_gpu(q, k, v, shape, document_starts, sinks);
}

std::vector<at::Tensor> attend_backward(const at::Tensor& grad, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionResult& result, const AttentionShape& shape,
                                        const std::vector<int64_t>& document_starts,
                                        const at::Tensor& sinks) {
  if (!takes_gpu_form(q)) {
    return attend_backward_cpu(grad, q, k, v, result, shape, document_starts, sinks);
  }
  return attend_backward_gpu(grad, q, k, v, result, shape, document_starts, sinks);
}

}  // namespace longshore
