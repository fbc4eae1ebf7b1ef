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

// Returns whether the packed values are those of the trained model rather than others.
bool holds_change(const PackedChange& change) {
  return change.surviving() >= kLeastSurviving && change.error_per_change() <= 1.0;
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
      matrices, [](const Matrix& matrix) { return !holds_change(matrix.change); });
  std::string sum = "packed " + std::to_string(matrices.size()) +
                    " trained matrices in the published form: " + text_of(sum_of(result));
  if (lossy > 0) sum += "; " + std::to_string(lossy) + " of them are far from the trained ones";
  lines.push_back(std::move(sum));
  return lines;
}

std::string packing_warning(const ExportResult& result, bool adapter, const std::string& run) {
  const PackedChange sum = sum_of(result);
  if (holds_change(sum)) return "";
  const std::string why = ", because its steps are larger than the changes";
  const std::string lost =
      sum.surviving() < kLeastSurviving
          ? formatted("only %.1f %% of what training changed survives in the published form",
                      100.0 * sum.surviving()) +
                why + ": the export is nearer to the base than to the trained model"
          : formatted(
                "packing in the published form changes values by %.1f times what training "
                "changed",
                sum.error_per_change()) +
                why + ": the base is nearer to the trained model than the export";
  const std::string command = "longshore export " + run;
  const std::string bf16 = command + (adapter ? " --merged" : "") + " --format bf16 --to DIR";
  return lost + "; instead export " +
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
