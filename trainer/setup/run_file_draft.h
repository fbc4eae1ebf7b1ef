// RunFileDraft: the run file that `longshore init` writes: keys with their values and why they were
// chosen, from what is known of the model, the data and the machine. Plain values and pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/texts.h"
#include "config/run_config.h"

namespace longshore {

// What a run is for: kExact keeps fp32 moments, kSmall has 8-bit ones. The others are searched for
// (best_point): kFastest and kLongest among balanced plans, kSmallest among small ones.
enum class DraftGoal : uint8_t { kBalanced, kExact, kSmall, kFastest, kLongest, kSmallest };
constexpr bool is_searched(DraftGoal goal) {
  return goal >= DraftGoal::kFastest;
}

struct DraftFacts {
  std::string model;              // as the user named it
  std::vector<std::string> data;  // paths or hub ids
  std::string run_directory;
  std::vector<std::string> drives;    // directories for offload.nvme; may be empty
  const NamedText* recipe = nullptr;  // whose keys are taken, the goal then is not looked at
  DraftGoal goal = DraftGoal::kBalanced;
  int64_t parameters = 0;
  int64_t max_positions = 0;  // that the model was made for; 0: not known
  int64_t longest_row = 0;    // tokens, of the rows that were looked at
  bool text = false;          // all tokens of those rows are trained
  Bytes data_bytes = 0;       // of all files
  bool gpu = false;
  bool cpu_bf16 = false;  // in hardware
};

struct DraftKey {
  std::string section, name;
  std::string value;  // TOML
  std::string why;    // empty: nothing to say
};

// The keys of a run file that has each on a line of its own, as it spells them; a comment behind
// one is why. ConfigError where it is no TOML.
std::vector<DraftKey> keys_of_run_file(std::string_view text, const std::string& origin);

class RunFileDraft {
 public:
  // Replaces the key where it is there; keys of a section stay together.
  void set(const std::string& section, const std::string& name, const std::string& value,
           const std::string& why);
  const std::vector<DraftKey>& keys() const { return keys_; }
  // The keys as arguments of a command.
  std::vector<Override> overrides() const;
  // A run file with a comment for each key that has a reason. `made_of`: what its first line says
  // it was made of, if anything.
  std::string toml(const std::string& made_of = "") const;

 private:
  std::vector<DraftKey> keys_;
};

// Everything but what the plan decides.
RunFileDraft first_draft(const DraftFacts& facts);

// One after another, each on top of those before, until the plan fits: the fastest first.
struct DraftStep {
  std::string words;  // what is tried
  std::vector<DraftKey> keys;
};
std::vector<DraftStep> draft_steps(const DraftFacts& facts);

// The run files of config/recipes, by name: "qwen3-8b_rtx-4090" is for that model on the common
// machine rtx-4090.
std::span<const NamedText> common_recipes();

}  // namespace longshore
