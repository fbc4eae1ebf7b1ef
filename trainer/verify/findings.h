// Findings: the results of `check model`, one per check and subject. Owned by the command; one
// thread.
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
  kSkipped,  // not checked; `detail` has the reason
  kWarning,  // unusual, but possibly intended
  kFailed,   // definitely wrong
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
  // Keeps the first 50 warnings and failures of a check and counts the rest.
  void add(Verdict verdict, const std::string& check, const std::string& subject,
           const std::string& detail);

  // Returns the results, with a last line for each check that has more than were kept.
  std::vector<Finding> lines() const;
  int64_t count(Verdict verdict) const { return counts_[static_cast<size_t>(verdict)]; }
  bool failed() const { return count(Verdict::kFailed) > 0; }

 private:
  std::vector<Finding> kept_;
  int64_t counts_[4] = {};
  std::map<std::string, int64_t> bad_;  // warnings and failures by check
};

// These format the results as a table for people and as one JSON object.
std::string format_findings(const Findings& findings, const std::string& model);
Json to_json(const Findings& findings, const std::string& model);

}  // namespace longshore
