#include "trainer/verify/tensor_check.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "hf/export_plan.h"

namespace longshore {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 18;
constexpr size_t kFewestLayers = 4;  // minimum for a meaningful median

struct TensorValues {
  MatrixPart part;
  int64_t bad = 0;         // NaN or infinite
  int64_t first_bad = -1;  // index of the first bad element
  double squares = 0.0;    // sum over finite values, in order
  float least = std::numeric_limits<float>::infinity();
  float greatest = -std::numeric_limits<float>::infinity();

  bool all_same() const { return bad == 0 && least == greatest; }
  double root_mean_square() const {
    return std::sqrt(squares / static_cast<double>(part.elements));
  }
};

void look_at(const ModelSource& source, TensorValues& values, Progress& progress) {
  const int64_t elements = values.part.elements;
  std::vector<float> chunk(static_cast<size_t>(std::min(elements, kChunkElements)));
  for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
    const auto count = static_cast<size_t>(std::min(kChunkElements, elements - begin));
    const std::span<float> part = std::span(chunk).first(count);
    source.read_initial(values.part.parameter->name, values.part.begin + begin, part);
    for (size_t i = 0; i < count; ++i) {
      const float value = part[i];
      if (!std::isfinite(value)) {
        if (values.bad++ == 0) values.first_bad = begin + static_cast<int64_t>(i);
        continue;
      }
      values.squares += static_cast<double>(value) * value;
      values.least = std::min(values.least, value);
      values.greatest = std::max(values.greatest, value);
    }
    progress.add(static_cast<Bytes>(part.size_bytes()));
  }
}

// Returns a name shared by all layers and experts: "model.layers.{i}.mlp.up_proj.weight".
std::string part_of(const std::string& name) {
  std::string part;
  for (size_t i = 0; i < name.size();) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    if (digit && i > 0 && (name[i - 1] == '.' || name[i - 1] == '[')) {
      while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0) ++i;
      part += "{i}";
    } else {
      part += name[i++];
    }
  }
  return part;
}

std::string number(double value) {
  return formatted("%.3g", value);
}

void check_values(const TensorValues& values, Findings& findings) {
  const std::string& name = values.part.name;
  if (values.bad > 0) {
    findings.add(Verdict::kFailed, "tensors", name,
                 std::to_string(values.bad) + " of " + std::to_string(values.part.elements) +
                     " values are NaN or infinite, the first is element " +
                     std::to_string(values.first_bad));
  } else if (values.part.shape.size() > 1 && values.part.elements > 1 && values.all_same()) {
    findings.add(Verdict::kWarning, "tensors", name,
                 "every value is " + number(values.least) + ": was it ever filled?");
  }
}

void check_scales(const std::vector<TensorValues>& tensors, Findings& findings) {
  std::map<std::string, std::vector<const TensorValues*>> parts;
  for (const TensorValues& values : tensors) {
    if (values.part.shape.size() < 2 || values.bad > 0 || values.all_same()) continue;
    parts[part_of(values.part.name)].push_back(&values);
  }
  for (const auto& [part, layers] : parts) {
    if (layers.size() < kFewestLayers) continue;
    std::vector<double> scales;
    for (const TensorValues* values : layers) scales.push_back(values->root_mean_square());
    const double median = median_of(scales);
    for (const TensorValues* values : layers) {
      const double scale = values->root_mean_square();
      if (scale < median * kOddScale && scale > median / kOddScale) continue;
      findings.add(Verdict::kWarning, "tensors", values->part.name,
                   "its values are " + number(scale / median) + " times as large as in other " +
                       "layers (root mean square " + number(scale) + ", median " + number(median) +
                       ")");
    }
  }
}

int64_t count_parameters(const ModelSource& source) {
  int64_t count = 0;
  for (const UnitSpec& unit : source.spec().units) {
    count += static_cast<int64_t>(unit.parameters.size());
  }
  return count;
}

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
  return formatted("%.3g %%", 100.0 * share);
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
      return "is the base's, scaled by " + formatted("%.4g", own.scale);
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

void check_tensors(const ModelSource& source, Findings& findings) {
  std::vector<TensorValues> tensors;
  for (MatrixPart& part : matrix_parts(source.spec())) tensors.push_back({.part = std::move(part)});
  Bytes bytes = 0;
  for (const TensorValues& values : tensors) {
    bytes += values.part.elements * static_cast<Bytes>(sizeof(float));
  }
  Progress progress("checking tensors", bytes);
  tbb::parallel_for(size_t{0}, tensors.size(),
                    [&](size_t i) { look_at(source, tensors[i], progress); });
  const int64_t bad_before = findings.count(Verdict::kFailed) + findings.count(Verdict::kWarning);
  for (const TensorValues& values : tensors) check_values(values, findings);
  check_scales(tensors, findings);
  const bool fine =
      findings.count(Verdict::kFailed) + findings.count(Verdict::kWarning) == bad_before;
  const bool compared = source.arch().layer_count() >= static_cast<int64_t>(kFewestLayers);
  findings.add(Verdict::kOk, "tensors", std::to_string(count_parameters(source)) + " tensors",
               format_count(source.spec().parameter_elements()) + " values read" +
                   (fine ? ", all finite" : "") +
                   (compared ? "; sizes compared between layers"
                             : "; too few layers to compare sizes between them"));
}

void check_exported(const ModelDirectory& directory, Findings& findings) {
  const ExportList list = read_export_list(directory.path());
  if (list.tensors.empty()) return;
  const std::vector<std::pair<std::string, uint64_t>> listed(list.tensors.begin(),
                                                             list.tensors.end());
  std::vector<std::optional<uint64_t>> found(listed.size());
  tbb::parallel_for(size_t{0}, listed.size(), [&](size_t i) {
    const ModelDirectory::TensorRef tensor = directory.find_stored(listed[i].first);
    if (tensor) found[i] = tensor.file->file.hash(*tensor.tensor);
  });
  std::map<uint64_t, std::string> names;
  for (const auto& [name, hash] : listed) names.emplace(hash, name);
  int64_t same = 0;
  for (size_t i = 0; i < listed.size(); ++i) {
    if (!found[i] || *found[i] == listed[i].second) {
      same += found[i].has_value() ? 1 : 0;
      continue;
    }
    const auto other = names.find(*found[i]);
    findings.add(Verdict::kFailed, "export", listed[i].first,
                 other == names.end()
                     ? "is not what the export wrote: changed since"
                     : "holds what the export wrote as '" + other->second + "': swapped");
  }
  findings.add(Verdict::kOk, "export", std::to_string(same) + " tensors",
               "hold the bytes that the export wrote");
}

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

std::vector<MatrixPart> matrix_parts(const ModelSpec& spec) {
  std::vector<MatrixPart> parts;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.stacked) {
        parts.push_back({&parameter, parameter.name, parameter.shape, 0, parameter.elements()});
        continue;
      }
      const std::vector<int64_t> shape(parameter.shape.begin() + 1, parameter.shape.end());
      const int64_t elements = parameter.elements() / parameter.shape[0];
      for (int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
        parts.push_back({&parameter, parameter.name + "[" + std::to_string(expert) + "]", shape,
                         expert * elements, elements});
      }
    }
  }
  return parts;
}

}  // namespace longshore
