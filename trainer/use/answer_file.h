// AnswerFile: the lines of `generate --out`, one JSON object for each answer, in order. Each line
// is one write, so a process that is killed leaves whole lines and at most a part of one, which the
// next start cuts off. Beside the file, FILE.settings.json has what its lines follow from; a start
// with other settings does not go on with it. Owned by the command; one thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace longshore {

class AnswerFile {
 public:
  // Opens the file, which is created if it does not exist, and locks it. Throws ConfigError if it
  // has lines of other settings, lines without settings, or lines that are not answers in order,
  // `samples` to each prompt; or if another process writes it.
  AnswerFile(const std::string& path, const Json& settings, int64_t samples);

  // Returns the number of answers that the file had already.
  int64_t found() const { return found_; }
  void add(const Json& answer);
  // Makes all lines durable.
  void sync() { sync_file(fd_); }

  static std::string settings_path(const std::string& path) { return path + ".settings.json"; }

 private:
  void cut_torn_line();
  void check_lines(int64_t samples);

  std::string path_;
  UniqueFd fd_;
  int64_t found_ = 0;
};

}  // namespace longshore
