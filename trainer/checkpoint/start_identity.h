// StartIdentity: identifies the values that a run began with, so that no later start silently
// trains, evaluates or exports with other values. A run keeps it in <run.dir>/start.json and in
// every checkpoint; trainer/model/frozen_check.h makes and compares it. Plain value.
#pragma once

#include <map>
#include <string>

#include "base/json.h"

namespace longshore {

struct StartIdentity {
  // The fingerprint of the model (ModelSource::fingerprint), which does not cover values.
  std::string model = {};
  // By the tensor's name in the files: type, shape and place_sum of the values of a frozen tensor
  // as the files store them, so of codes and of scales if the tensor is packed. A tensor that was
  // not read whole is missing.
  std::map<std::string, std::string> frozen = {};
  // The hash of all tensors that the run began with, trained ones and those of adapter.path
  // included; empty until all were read, and for random weights.
  std::string values = {};
  // The hash of all tensors of the model that preference.reference names; empty without one.
  std::string reference = {};
  bool operator==(const StartIdentity&) const = default;
};

Json to_json(const StartIdentity& identity);
// Throws CheckpointError, whose text begins with `where`, if the object does not have this form.
StartIdentity parse_start_identity(const Json& object, const std::string& where);

// Reads <run.dir>/start.json; empty if there is none. Throws CheckpointError if it is damaged.
StartIdentity read_start_identity(const std::string& run_directory);
// Replaces it durably. Throws IoError.
void write_start_identity(const std::string& run_directory, const StartIdentity& identity);

}  // namespace longshore
