// Diagnosis: what a machine's facts mean for runs: a line for each thing that was looked at, with
// what to do where something should be done. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "trainer/doctor/machine_facts.h"

namespace longshore {

enum class Health : uint8_t {
  kOk,
  kWarning,  // runs work, and could do better
  kFailed,   // runs that need it will end
};
std::string_view name_of(Health health);  // "ok", "warn", "fail"

struct Diagnosis {
  std::string check;  // "memlock", "io_uring"
  Health health = Health::kOk;
  std::string found;
  std::string advice = {};  // empty where nothing is to be done
};

std::vector<Diagnosis> diagnose(const MachineFacts& facts);
bool any_failed(const std::vector<Diagnosis>& diagnoses);

// Lines for people, and one object for programs.
std::string format_diagnoses(const std::vector<Diagnosis>& diagnoses);
Json to_json(const std::vector<Diagnosis>& diagnoses);

}  // namespace longshore
