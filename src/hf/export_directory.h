// ExportDirectory: where an export is written until it is complete:
// "<destination>.longshore-partial", which then takes the destination's place in one rename. Files
// in the destination that no export wrote come along; what is removed of the older export is what
// the list of it names, unchanged. Owned by the export; one thread. Destroyed before `publish`, it
// leaves the destination as it was.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "hf/export_list.h"

namespace longshore {

class ExportDirectory {
 public:
  // `destination` is absolute; it may exist. `names`: all files that will be written. ConfigError
  // where another process exports to it.
  ExportDirectory(std::string destination, std::vector<std::string> names);
  ExportDirectory(const ExportDirectory&) = delete;
  ExportDirectory& operator=(const ExportDirectory&) = delete;
  ~ExportDirectory();

  // Where to write.
  const std::string& path() const { return partial_; }
  // `before`: what the destination held; empty where there was none.
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
