#include "comm/ranks/slurm_nodelist.h"

namespace longshore {
namespace {

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  size_t i = 0;
  while (i < list.size() && list[i] != ',') {
    if (list[i] != '[') {
      if (!is_host_character(list[i])) return {};
      host += list[i++];
      continue;
    }
    const size_t close = list.find(']', i);
    if (close == std::string_view::npos) return {};
    const size_t begin = host.size();
    for (++i; i < close && is_digit(list[i]); ++i) host += list[i];
    if (host.size() == begin) return {};
    // The rest of the brackets names other hosts.
    i = close + 1;
  }
  return host;
}

}  // namespace longshore
