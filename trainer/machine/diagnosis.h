// Diagnosis: evaluates a machine's properties for runs, one line per check, with advice where a
// change helps. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "trainer/machine/machine_facts.h"

namespace longshore {

enum class Health : uint8_t {
  kOk,
  kWarning,  // runs work, but could be faster
  kFailed,   // runs that need it will fail
};
std::string_view name_of(Health health);  // "ok", "warn" or "fail"

struct Diagnosis {
  std::string check;  // "memlock", "io_uring"
  Health health = Health::kOk;
  std::string found;
  std::string advice = {};  // empty if no change is needed
};

std::vector<Diagnosis> diagnose(const MachineFacts& facts);
bool any_failed(const std::vector<Diagnosis>& diagnoses);

// These format the results as lines for people and as one JSON object.
std::string format_diagnoses(const std::vector<Diagnosis>& diagnoses);
Json to_json(const std::vector<Diagnosis>& diagnoses);

}  // namespace longshore
