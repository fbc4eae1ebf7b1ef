// ExportDirectory: the directory "<destination>.longshore-partial" in which an export is written
// until it is complete; one rename then replaces the destination. Foreign files in the destination
// are carried over; of an older export only files that its list names and that are unchanged are
// removed. The export owns it; one thread. If it is destroyed before `publish`, the destination
// stays unchanged.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "hf/export_plan.h"

namespace longshore {

class ExportDirectory {
 public:
  // `destination` is absolute and may exist; `names` are all files that will be written. Throws
  // ConfigError if another process exports to it.
  ExportDirectory(std::string destination, std::vector<std::string> names);
  ExportDirectory(const ExportDirectory&) = delete;
  ExportDirectory& operator=(const ExportDirectory&) = delete;
  ~ExportDirectory();

  // Returns the directory to write to.
  const std::string& path() const { return partial_; }
  // `before` is the destination's previous content; empty if it did not exist.
  void publish(const ExportList& written, const ExportContents& before);

 private:
  bool take(const std::string& path);
  void carry_over(const std::vector<std::string>& foreign) const;

  std::string destination_;
  std::string partial_;
  std::vector<std::string> names_;
  UniqueFd lock_;
  bool published_ = false;
};

}  // namespace longshore
