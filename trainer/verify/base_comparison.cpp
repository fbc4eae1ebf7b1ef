#include "trainer/verify/base_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "trainer/verify/matrix_part.h"

namespace longshore {
namespace {

constexpr int64_t kRuns = 64;       // number of contiguous samples, spread evenly over the tensor
constexpr int64_t kRunValues = 64;  // values per sample
constexpr double kUnrelated = 0.5;  // relative distance; unrelated tensors have sqrt(2)
// A swapped, scaled or transposed tensor is reported if that explanation is this factor nearer to
// the values than the base's own tensor.
constexpr double kMuchNearer = 4.0;
// A tensor nearer than this to its own base tensor is not searched for swaps, because models with
// thousands of experts have too many pairs.
constexpr double kLeastSwapped = 0.02;
constexpr double kLeastScale = 0.02;  // a smaller change of scale may be weight decay

// Further differing tensors get no explanation, because each is compared with all of its shape.
constexpr int64_t kMostExplained = 200;

struct Sampled {
  MatrixPart part;
  std::vector<float> values, base;
};

// Returns begin and length of each sampled run of values.
std::vector<std::pair<int64_t, int64_t>> sample_runs(int64_t elements) {
  if (elements <= kRuns * kRunValues) return {{0, elements}};
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (int64_t i = 0; i < kRuns; ++i) {
    runs.emplace_back((elements - kRunValues) / (kRuns - 1) * i, kRunValues);
  }
  return runs;
}

std::vector<float> sample(const ModelSource& source, const MatrixPart& part) {
  std::vector<float> values;
  for (const auto& [begin, count] : sample_runs(part.elements)) {
    values.resize(values.size() + static_cast<size_t>(count));
    source.read_initial(part.parameter->name, part.begin + begin,
                        std::span(values).last(static_cast<size_t>(count)));
  }
  return values;
}

// Returns the sampled positions of a square matrix read from the transposed position.
std::vector<float> sample_transposed(const ModelSource& source, const MatrixPart& part) {
  const int64_t columns = part.shape[1];
  std::vector<float> values;
  for (const auto& [begin, count] : sample_runs(part.elements)) {
    for (int64_t at = begin; at < begin + count; ++at) {
      float value = 0.0F;
      source.read_initial(part.parameter->name, part.begin + at % columns * columns + at / columns,
                          {&value, 1});
      values.push_back(value);
    }
  }
  return values;
}

std::map<std::string, const ParamSpec*> parameters_of(const ModelSpec& spec) {
  std::map<std::string, const ParamSpec*> parameters;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) parameters[parameter.name] = &parameter;
  }
  return parameters;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", 100.0 * share);
  return text;
}

class BaseComparison {
 public:
  BaseComparison(const ModelSource& source, const ModelSource& base, Findings& findings)
      : source_(source), base_(base), findings_(findings) {}

  void run() {
    const auto others = parameters_of(base_.spec());
    for (const MatrixPart& part : matrix_parts(source_.spec())) add(part, others);
    for (const auto& [shape, tensors] : by_shape_) {
      for (const Sampled& tensor : tensors) judge(tensor, tensors);
    }
    findings_.add(Verdict::kOk, "base", std::to_string(compared_) + " tensors",
                  std::to_string(compared_ - unlike_) + " differ from " + base_.directory().path() +
                      " no more than after fine-tuning, at most by " + percent(furthest_));
  }

 private:
  void add(const MatrixPart& part, const std::map<std::string, const ParamSpec*>& others) {
    const ParamSpec& parameter = *part.parameter;
    const auto other = others.find(parameter.name);
    if (other == others.end()) {
      findings_.add(Verdict::kWarning, "base", part.name, "the base has no such tensor");
      return;
    }
    if (other->second->shape != parameter.shape) {
      findings_.add(Verdict::kWarning, "base", part.name, "has another shape in the base");
      return;
    }
    by_shape_[part.shape].push_back({part, sample(source_, part), sample(base_, part)});
    ++compared_;
  }

  void judge(const Sampled& tensor, const std::vector<Sampled>& same_shape) {
    const Closeness own = closeness(tensor.values, tensor.base);
    std::optional<std::string> problem;
    if (unlike_ < kMostExplained) problem = explain(tensor, own, same_shape);
    if (!problem.has_value() && own.distance <= kUnrelated) {
      furthest_ = std::max(furthest_, own.distance);
      return;
    }
    ++unlike_;
    findings_.add(problem ? Verdict::kFailed : Verdict::kWarning, "base", tensor.part.name,
                  problem.value_or("differs from the base's by " + percent(own.distance) +
                                   " of its size: newly initialized, or from another model"));
  }

  // Returns how the tensor is swapped, scaled or transposed; empty if it is not.
  std::optional<std::string> explain(const Sampled& tensor, const Closeness& own,
                                     const std::vector<Sampled>& same_shape) const {
    if (own.distance < kLeastSwapped) return std::nullopt;
    double nearest = own.distance;
    const Sampled* holder = nullptr;
    for (const Sampled& other : same_shape) {
      if (&other == &tensor) continue;
      const double distance = closeness(tensor.values, other.base).distance;
      if (distance < nearest) nearest = distance, holder = &other;
    }
    if (holder != nullptr && nearest * kMuchNearer <= own.distance) {
      return "holds the base's '" + holder->part.name + "': swapped";
    }
    if (std::abs(own.scale - 1.0) > kLeastScale &&
        own.residual * kMuchNearer <= std::abs(own.scale - 1.0)) {
      char text[32];
      std::snprintf(text, sizeof text, "%.4g", own.scale);
      return "is the base's, scaled by " + std::string(text);
    }
    const std::vector<int64_t>& shape = tensor.part.shape;
    if (shape.size() == 2 && shape[0] == shape[1] && shape[0] > 1 && own.distance > kUnrelated) {
      const std::vector<float> turned = sample_transposed(base_, tensor.part);
      if (closeness(tensor.values, turned).distance * kMuchNearer <= own.distance) {
        return "is the base's, transposed";
      }
    }
    return std::nullopt;
  }

  const ModelSource& source_;
  const ModelSource& base_;
  Findings& findings_;
  std::map<std::vector<int64_t>, std::vector<Sampled>> by_shape_;
  int64_t compared_ = 0, unlike_ = 0;
  double furthest_ = 0.0;
};

}  // namespace

Closeness closeness(std::span<const float> a, std::span<const float> b) {
  double aa = 0.0, ab = 0.0, bb = 0.0, apart = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    aa += x * x;
    ab += x * y;
    bb += y * y;
    apart += (x - y) * (x - y);
  }
  Closeness result;
  if (apart == 0.0) return result;
  result.distance = bb > 0.0 ? std::sqrt(apart / bb) : HUGE_VAL;
  result.scale = bb > 0.0 ? ab / bb : 1.0;
  // With this scale s, |a - s b|^2 = aa - s ab.
  result.residual = aa > 0.0 ? std::sqrt(std::max(0.0, aa - result.scale * ab) / aa) : 1.0;
  return result;
}

void compare_with_base(const ModelSource& source, const ModelSource& base, Findings& findings) {
  BaseComparison(source, base, findings).run();
}

}  // namespace longshore
