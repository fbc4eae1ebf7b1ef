#include "trainer/verify/tensor_check.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/median.h"
#include "base/progress.h"
#include "hf/export_list.h"
#include "trainer/verify/matrix_part.h"

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
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
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
               std::to_string(source.spec().parameter_elements()) + " values read" +
                   (fine ? ", all finite" : "") +
                   (compared ? "; sizes compared between layers"
                             : "; too few layers to compare sizes between them"));
}

void check_exported(const ModelSource& source, Findings& findings) {
  const ExportList list = read_export_list(source.directory().path());
  if (list.tensors.empty()) return;
  const std::vector<std::pair<std::string, uint64_t>> listed(list.tensors.begin(),
                                                             list.tensors.end());
  std::vector<std::optional<uint64_t>> found(listed.size());
  tbb::parallel_for(size_t{0}, listed.size(), [&](size_t i) {
    const ModelDirectory::TensorRef tensor = source.directory().find_stored(listed[i].first);
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

}  // namespace longshore
