// Findings: what a look at a model directory found, a line for each thing that was looked at.
// Owned by the command; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace longshore {

enum class Verdict : uint8_t {
  kOk,
  kSkipped,  // could not be looked at; says why
  kWarning,  // odd, and may be meant
  kFailed,   // wrong
};

std::string_view name_of(Verdict verdict);

struct Finding {
  std::string check;    // "tensors", "base", "tokenizer", ...
  std::string subject;  // a file, a tensor, a layer
  Verdict verdict = Verdict::kOk;
  std::string detail;  // one line
};

class Findings {
 public:
  // Keeps the first 50 warnings and failures of a check, and counts the others.
  void add(Verdict verdict, const std::string& check, const std::string& subject,
           const std::string& detail);

  // With a last line for each check that has more than was kept.
  std::vector<Finding> lines() const;
  int64_t count(Verdict verdict) const { return counts_[static_cast<size_t>(verdict)]; }
  bool failed() const { return count(Verdict::kFailed) > 0; }

 private:
  std::vector<Finding> kept_;
  int64_t counts_[4] = {};
  std::map<std::string, int64_t> bad_;  // warnings and failures by check
};

// A table for people, and one object for programs.
std::string format_findings(const Findings& findings, const std::string& model);
Json to_json(const Findings& findings, const std::string& model);

}  // namespace longshore
