// Looker: what a run file's settings show in a run of two steps, in the plan or in prepared data,
// for the tests that every key and every value does something. It owns a scratch directory with
// small models and data; test code, one thread.
#pragma once

#include <cstdint>
#include <string>

#include "tests/parity/run_driver.h"

namespace longshore {

// Sight: where the change of a key is seen.
enum class Sight : uint8_t {
  kRun,         // losses, events, plan, files, exit code of `train`
  kRanks,       // the plan of four ranks on two nodes
  kGpus,        // the plan for a machine with two GPUs
  kNoGpu,       // the plan for a machine without one
  kSchedule,    // the operations of a step in the plan
  kPrepare,     // what `prepare` says about rows and tokens
  kCacheFiles,  // the files that `prepare` leaves in the cache
  kThreads      // the options that data are prepared with
};

// Seen: what the settings show; a refusal shows its exit code and message.
struct Seen {
  bool refused = false;
  std::string text;
  bool operator==(const Seen&) const = default;
};

class Looker {
 public:
  // Makes the models and data in a scratch directory of that name.
  explicit Looker(const std::string& name);
  Looker(const Looker&) = delete;
  Looker& operator=(const Looker&) = delete;
  ~Looker();

  // Looks at the base settings, then these, of which later ones win; `$` is the directory.
  Seen look(Sight sight, const Arguments& settings) const;

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  // Writes eight rows; `#` becomes the row's number.
  void write_rows(const std::string& name, const std::string& row) const;
  void write_data() const;
  // Returns the words of a command, followed by the settings as options.
  Arguments command(Arguments words, const Arguments& settings) const;
  Seen plan(const Arguments& options, const Arguments& settings) const;
  Seen plan_of_ranks(const Arguments& settings) const;
  Seen run(const Arguments& settings) const;
  Seen prepared(const Arguments& settings) const;
  Seen cache_files(const Arguments& settings) const;
  Seen prepare_threads(const Arguments& settings) const;

  std::string directory_;
};

// Returns the bytes of a file; "" if it cannot be read.
std::string text_of_file(const std::string& path);

}  // namespace longshore
