// ConfigReader: reads keys of a config.json under any of their spellings, checks bounds and
// collects all problems for one message. It refers to the Json, which the caller owns; one thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/families/arch_spec.h"

namespace longshore {

class ConfigReader {
 public:
  using Keys = std::initializer_list<std::string_view>;
  // `config` must outlive the reader. `path` starts every message.
  ConfigReader(const Json& config, std::string path);

  const std::string& path() const { return path_; }
  void problem(std::string_view key, const std::string& what);
  // Returns true if the key exists, even if it is null.
  bool has(std::string_view key) const;
  // Returns the first key that exists and is not null; marks all of them as known.
  const Json* find(Keys keys);

  // These return nullopt if absent or null. A wrong type or bad value adds a problem.
  std::optional<int64_t> integer(Keys keys, int64_t least, int64_t most);
  std::optional<double> real(Keys keys, double least, double most);
  std::optional<bool> boolean(Keys keys);
  std::optional<std::string> text(Keys keys);
  // These return one integer or a list of values; empty if absent.
  std::vector<int64_t> integers(Keys keys, int64_t least, int64_t most);
  std::vector<double> reals(Keys keys, double least, double most);
  std::vector<std::string> texts(Keys keys);

  // Reads a required size in 1 .. 2^31 - 1. Returns 1 after a problem.
  int64_t size(Keys keys);
  int64_t size_or(Keys keys, int64_t otherwise);

  // Ends the reading of an object with all its keys. Refuses keys that were never read and whose
  // names mean that they change the numbers; notes dropout, and collects other keys that were never
  // read, but for those known to have no effect on the numbers of training.
  void finish_keys(ArchSpec& arch);
  // Adds the problems of a reader of a nested object.
  void take_problems(const ConfigReader& inner);
  // Throws ConfigError if there was a problem.
  void finish() const;
  bool has_problems() const { return !problems_.empty(); }

 private:
  // Returns the spelling the file uses, or the first one.
  std::string shown_name(Keys keys) const;
  void refuse_unknown_numeric_keys();
  void note_dropout(ArchSpec& arch);

  const Json* object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> problems_;
};

// config_rope: reads the rotary embedding of a config.json in the spellings of transformers 4
// (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`). Used by families' readers. Pure
// functions.

// A family's rules for the keys.
struct RopeRules {
  double theta = 10000.0;     // default if the file has none
  double share = 1.0;         // default share of each head that rotates
  bool partial = false;       // the file may set that share
  bool alpha = false;         // "dynamic" with a fixed alpha stretches theta (HunYuan)
  bool proportional = false;  // allows "proportional": a share of the pairs turns (Gemma 4)
  bool longrope = false;  // allows factors for long documents; "su" and "yarn" then mean longrope
};

// Reads one embedding for all layers. Problems go to `config`.
void read_rope(ConfigReader& config, const RopeRules& rules, ArchSpec& arch);

// Reads one embedding for full and one for sliding layers. `rope_theta` and `rope_scaling` are of
// full layers; `sliding_theta_key`, unless empty, is transformers 4's key for sliding ones.
void read_rope_by_layer_type(ConfigReader& config, double full_theta, double sliding_theta,
                             std::string_view sliding_theta_key, ArchSpec& arch,
                             const RopeRules& rules = {});

}  // namespace longshore
