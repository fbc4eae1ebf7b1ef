// RunFileDraft: the run file that `longshore init` writes: keys with values and reasons, derived
// from the model, the data and the machine. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/texts.h"
#include "config/run_config.h"

namespace longshore {

// The goal of a run: kExact keeps fp32 moments, kSmall has 8-bit ones. best_point searches for the
// last three: kFastest and kLongest among balanced plans, kSmallest among small ones.
enum class DraftGoal : uint8_t { kBalanced, kExact, kSmall, kFastest, kLongest, kSmallest };
constexpr bool is_searched(DraftGoal goal) {
  return goal >= DraftGoal::kFastest;
}

struct DraftKey {
  std::string section, name;
  std::string value;  // TOML
  std::string why;    // the reason; may be empty
  std::string full_name() const { return section + "." + name; }
};

struct DraftFacts {
  std::string model;              // as the user named it
  std::vector<std::string> data;  // paths or hub ids
  std::string run_directory;
  std::vector<std::string> drives;    // directories for offload.nvme; may be empty
  const NamedText* recipe = nullptr;  // source of the keys; `goal` is then ignored
  DraftGoal goal = DraftGoal::kBalanced;
  bool adapter = false;              // trains LoRA adapters; excludes a recipe
  std::vector<DraftKey> given = {};  // keys of the command line
  int64_t parameters = 0;
  int64_t max_positions = 0;  // the model's limit; 0: unknown
  int64_t longest_row = 0;    // tokens, among the rows that were read: all if they were counted
  // The rows of all files, and those that are dropped at this sequence length; 0 tokens: only the
  // first rows of each file were read.
  struct Counted {
    int64_t max_tokens = 0, rows = 0, left_out = 0;
  };
  Counted counted = {};
  bool text = false;     // all tokens of the sampled rows are trained
  bool pairs = false;    // rows are pairs of a chosen and a rejected answer; no recipe then
  bool judged = false;   // rows are single answers with a label; no recipe then
  Bytes data_bytes = 0;  // of all files
  bool gpu = false;
  bool cpu_bf16 = false;  // in hardware
};

// Returns the keys of a run file that has one key per line, with values as written; a trailing
// comment is the reason. Throws ConfigError if the text is not TOML.
std::vector<DraftKey> keys_of_run_file(std::string_view text, const std::string& origin);

// Returns the keys of the command line. Throws ConfigError for unknown keys and wrong values.
std::vector<DraftKey> keys_given(const std::vector<Override>& overrides);

class RunFileDraft {
 public:
  // The given keys keep their values, and keys that have no effect together with them are left out.
  explicit RunFileDraft(std::vector<DraftKey> given) : given_(std::move(given)) {}
  RunFileDraft() = default;

  // Sets or replaces the key; keys of a section stay together.
  void set(const std::string& section, const std::string& name, const std::string& value,
           const std::string& why);
  // Sets the given keys that were not set yet.
  void add_given();
  // Returns the value of a given key, empty for other keys.
  std::string given(std::string_view key) const;
  const std::vector<DraftKey>& keys() const { return keys_; }
  // Returns the keys as command-line overrides.
  std::vector<Override> overrides() const;
  // Returns a run file with a comment for each key that has a reason. Its first line names
  // `made_of` as the source, if not empty.
  std::string toml(const std::string& made_of = "") const;

 private:
  bool has_no_effect(const std::string& key) const;

  std::vector<DraftKey> given_;
  std::vector<DraftKey> keys_;
};

// Returns the draft before any step of draft_steps.
RunFileDraft first_draft(const DraftFacts& facts);

// A step of a draft. Steps apply in order, each on top of the previous ones, until the plan fits.
struct DraftStep {
  std::string words;  // description of the attempt; empty for the first
  std::vector<DraftKey> keys;
};
std::vector<DraftStep> draft_steps(const DraftFacts& facts);

// Returns the run files of config/recipes by name: "qwen3-8b_rtx-4090" is for that model on the
// common machine rtx-4090.
std::span<const NamedText> common_recipes();

}  // namespace longshore
