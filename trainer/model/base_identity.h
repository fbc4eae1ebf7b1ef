// BaseIdentity: the model that an exported adapter or merged model was trained over, as
// longshore_base.json beside it says. Its values are identified as those of a run's start
// (StartIdentity::frozen), so a copy of the model in another directory or in other files is the
// same model. PEFT and transformers do not read the file. An adapter of adapter.path, or of --from,
// is refused over another model unless adapter.any_base is set. Plain value and functions for the
// main thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trainer/checkpoint/start_identity.h"

namespace longshore {

class ModelSource;

inline constexpr const char* kBaseIdentityName = "longshore_base.json";

struct BaseIdentity {
  std::string base = {};   // the model's hub id or path, as the run that trained over it named it
  int64_t vocabulary = 0;  // without rows that the run added
  // Type, shape and sum of the values of each frozen tensor, by its name in the files.
  std::map<std::string, std::string> tensors = {};
  bool operator==(const BaseIdentity&) const = default;
};

// Returns the text of longshore_base.json.
std::string base_identity_text(const BaseIdentity& identity);
// Reads the file of an adapter's directory; nullopt if there is none. Throws DataError if it is
// damaged.
std::optional<BaseIdentity> read_base_identity(const std::string& directory);

// Returns the identity of the model below the adapters of a run that began with `start`; nullopt if
// `start` lacks a frozen tensor, as for random weights and for runs of earlier versions.
std::optional<BaseIdentity> identity_of_base(const ModelSource& source, const StartIdentity& start);

// Returns whether the adapter that `source` starts from says which model it was trained over, and
// that is to be compared.
bool compares_base(const ModelSource& source);
// Throws ConfigError if the adapter was trained over a model with another vocabulary, or with
// tensors of other names, types or shapes. It reads no values.
void check_base_form(const ModelSource& source);
// Returns a refusal, which names both models, if a value that was read of the model is another one
// than the adapter was trained over; empty if all are equal.
std::string base_difference(const ModelSource& source, const StartIdentity& found);
// Returns a line about an adapter whose model is not compared, and why; otherwise empty.
std::string base_note(const ModelSource& source);

}  // namespace longshore
