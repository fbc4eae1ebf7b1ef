#include "base/errors.h"

#include <cstring>

namespace longshore {
namespace {

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (!text.empty()) text += '\n';
    text += line;
  }
  return text;
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> problems)
    : Error(ExitCode::kConfig, join_lines(problems)), problems_(std::move(problems)) {}

IoError::IoError(const std::string& operation, const std::string& path, int error_number)
    : Error(ExitCode::kFailure, operation + " " + path + ": " + std::strerror(error_number)) {}

namespace internal {

CheckStream::CheckStream(const char* file, int line, const char* condition) {
  text_ << "internal error: " << file << ":" << line << ": check failed: " << condition << " ";
}

CheckStream::~CheckStream() noexcept(false) {
  throw CheckFailure(text_.str());
}

}  // namespace internal
}  // namespace longshore
