#include "trainer/verify/findings.h"

#include <algorithm>
#include <array>

#include "base/texts.h"

namespace longshore {
namespace {

constexpr int64_t kMostOfACheck = 50;
constexpr size_t kSubjectColumns = 44;

std::string padded(std::string text, size_t columns) {
  if (text.size() < columns) text.append(columns - text.size(), ' ');
  return text;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  static constexpr std::array<std::string_view, 4> kNames = {"ok", "skipped", "warning", "FAILED"};
  return kNames[static_cast<size_t>(verdict)];
}

void Findings::add(Verdict verdict, const std::string& check, const std::string& subject,
                   const std::string& detail) {
  ++counts_[static_cast<size_t>(verdict)];
  const bool bad = verdict == Verdict::kWarning || verdict == Verdict::kFailed;
  if (bad && ++bad_[check] > kMostOfACheck) return;
  kept_.push_back({check, subject, verdict, detail});
}

std::vector<Finding> Findings::lines() const {
  std::vector<Finding> lines = kept_;
  for (const auto& [check, count] : bad_) {
    if (count <= kMostOfACheck) continue;
    lines.push_back(
        {check, "", Verdict::kWarning, "and " + std::to_string(count - kMostOfACheck) + " more"});
  }
  return lines;
}

std::string format_findings(const Findings& findings, const std::string& model) {
  const std::vector<Finding> lines = findings.lines();
  size_t subject_columns = 0;
  for (const Finding& finding : lines) {
    subject_columns = std::max(subject_columns, printable(finding.subject).size());
  }
  subject_columns = std::min(subject_columns, kSubjectColumns);
  std::string text = printable(model, 4096) + "\n";
  for (const Finding& finding : lines) {
    text += padded(std::string(name_of(finding.verdict)), 9) + padded(finding.check, 14) +
            padded(printable(finding.subject), subject_columns) + "  " +
            printable(finding.detail, 1024) + "\n";
  }
  text += findings.failed() ? "FAILED: " : "ok: ";
  text += std::to_string(findings.count(Verdict::kFailed)) + " failed, " +
          std::to_string(findings.count(Verdict::kWarning)) + " warnings, " +
          std::to_string(findings.count(Verdict::kSkipped)) + " skipped\n";
  return text;
}

Json to_json(const Findings& findings, const std::string& model) {
  Json list = Json::array();
  for (const Finding& finding : findings.lines()) {
    list.push_back(
        {{"check", finding.check},
         {"subject", finding.subject},
         {"verdict",
          finding.verdict == Verdict::kFailed ? "failed" : std::string(name_of(finding.verdict))},
         {"detail", finding.detail}});
  }
  return {{"model", model},
          {"ok", !findings.failed()},
          {"failed", findings.count(Verdict::kFailed)},
          {"warnings", findings.count(Verdict::kWarning)},
          {"skipped", findings.count(Verdict::kSkipped)},
          {"findings", list}};
}

}  // namespace longshore
