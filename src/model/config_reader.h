// ConfigReader: reads keys of a config.json under any of their spellings, checks bounds and keeps
// every problem for one message. Borrows the Json for its lifetime; one thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace longshore {

class ConfigReader {
 public:
  using Keys = std::initializer_list<std::string_view>;
  // `config` must outlive the reader. `path` leads every message.
  ConfigReader(const Json& config, std::string path);

  const std::string& path() const { return path_; }
  void problem(std::string_view key, const std::string& what);
  // True where the key is there, null included.
  bool has(std::string_view key) const;
  // The first of the keys that is there and not null; marks all of them as known.
  const Json* find(Keys keys);

  // Absent or null: nullopt. A wrong type or a value out of bounds is a problem and nullopt.
  std::optional<int64_t> integer(Keys keys, int64_t least, int64_t most);
  std::optional<double> real(Keys keys, double least, double most);
  std::optional<bool> boolean(Keys keys);
  std::optional<std::string> text(Keys keys);
  // One integer or a list of them; empty when absent.
  std::vector<int64_t> integers(Keys keys, int64_t least, int64_t most);
  std::vector<double> reals(Keys keys, double least, double most);
  std::vector<std::string> texts(Keys keys);

  // A size that must be there, 1 .. 2^31 - 1. Returns 1 after a problem.
  int64_t size(Keys keys);
  int64_t size_or(Keys keys, int64_t otherwise);

  // Keys that were never asked for and whose name says that they change the numbers.
  void refuse_unknown_numeric_keys();
  // Adds the problems of a reader of an object inside this one.
  void take_problems(const ConfigReader& inner);
  // ConfigError when there was a problem.
  void finish() const;
  bool has_problems() const { return !problems_.empty(); }

 private:
  // The spelling the file uses, or the first one.
  std::string shown_name(Keys keys) const;

  const Json* object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> problems_;
};

}  // namespace longshore
