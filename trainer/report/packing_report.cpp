#include "trainer/report/packing_report.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/log.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr double kLeastSurviving = 0.5;
constexpr std::string_view kExperts = ".experts.";

struct Matrix {
  std::string name;
  PackedChange change;
};

// Returns the name with "*" for the number of an expert.
std::string without_expert(const std::string& name) {
  const size_t found = name.find(kExperts);
  if (found == name.npos) return name;
  const size_t begin = found + kExperts.size(), end = name.find_first_not_of("0123456789", begin);
  if (end == begin || end == name.npos) return name;
  return name.substr(0, begin) + "*" + name.substr(end);
}

// Returns the matrices in the order of the files.
std::vector<Matrix> matrices_of(const ExportResult& result) {
  std::vector<Matrix> matrices;
  std::map<std::string, size_t> places;
  for (const PackedParameter& parameter : result.packed) {
    const std::string name = without_expert(parameter.name);
    const auto [place, added] = places.emplace(name, matrices.size());
    if (added) matrices.push_back({name, {}});
    matrices[place->second].change.add(parameter.change);
  }
  return matrices;
}

PackedChange sum_of(const ExportResult& result) {
  PackedChange sum;
  for (const PackedParameter& parameter : result.packed) sum.add(parameter.change);
  return sum;
}

std::string text_of(const PackedChange& change) {
  if (change.change == 0.0) return "unchanged, keeps its published bytes";
  return formatted("error %.2f %% of the values, %.1f %% of the trained change survives",
                   100.0 * change.relative_error(), 100.0 * change.surviving());
}

}  // namespace

std::vector<std::string> packing_lines(const ExportResult& result) {
  std::vector<std::string> lines;
  const std::vector<Matrix> matrices = matrices_of(result);
  if (matrices.empty()) return lines;
  lines.reserve(matrices.size() + 1);
  for (const Matrix& matrix : matrices) {
    lines.push_back("packed " + printable(matrix.name) + ": " + text_of(matrix.change));
  }
  const auto lossy = std::ranges::count_if(
      matrices, [](const Matrix& matrix) { return matrix.change.surviving() < kLeastSurviving; });
  std::string sum = "packed " + std::to_string(matrices.size()) +
                    " trained matrices in the published form: " + text_of(sum_of(result));
  if (lossy > 0) sum += "; in " + std::to_string(lossy) + " of them less than half";
  lines.push_back(std::move(sum));
  return lines;
}

std::string packing_warning(const ExportResult& result, bool adapter, const std::string& run) {
  const double surviving = sum_of(result).surviving();
  if (surviving >= kLeastSurviving) return "";
  const std::string command = "longshore export " + run;
  const std::string bf16 = command + (adapter ? " --merged" : "") + " --format bf16 --to DIR";
  return formatted("only %.1f %% of what training changed survives in the published form, ",
                   100.0 * surviving) +
         "because its steps are larger than the changes: the export is nearer to the base than to "
         "the trained model; instead export " +
         (adapter ? "the adapter alone (" + command + " --to DIR) or bf16 (" : "bf16 (") + bf16 +
         ")";
}

Json packing_json(const ExportResult& result) {
  if (result.packed.empty()) return nullptr;
  const auto object_of = [](const PackedChange& change) {
    return Json{{"error", change.relative_error()}, {"surviving", change.surviving()}};
  };
  Json object = object_of(sum_of(result));
  object["matrices"] = Json::array();
  for (const Matrix& matrix : matrices_of(result)) {
    Json one = object_of(matrix.change);
    one["name"] = printable(matrix.name);
    object["matrices"].push_back(std::move(one));
  }
  return object;
}

void log_packing(const ExportResult& result, bool adapter, const std::string& run) {
  for (const std::string& line : packing_lines(result)) log_info(line);
  const std::string warning = packing_warning(result, adapter, run);
  if (!warning.empty()) log_warning(warning);
}

}  // namespace longshore
