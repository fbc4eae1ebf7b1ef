// ExportDirectory: the directory of an export on its way to its place: written beside it under a
// name of its own, then put there by rename. Removed when it is never published. One thread.
#pragma once

#include <string>

namespace longshore {

class ExportDirectory {
 public:
  // `destination` is absolute and has been checked. Removes what an export that was killed left
  // there, and puts an older export back that it had moved aside.
  explicit ExportDirectory(std::string destination);
  ~ExportDirectory();
  ExportDirectory(const ExportDirectory&) = delete;
  ExportDirectory& operator=(const ExportDirectory&) = delete;

  // Where to write until `publish`.
  const std::string& path() const { return partial_; }
  // Syncs the directory and puts it at the destination; then removes the older export.
  void publish();

 private:
  std::string destination_;
  std::string partial_;
  std::string old_;
  bool published_ = false;
};

}  // namespace longshore
