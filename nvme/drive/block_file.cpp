#include "nvme/drive/block_file.h"

namespace longshore {

std::string_view name_of(BlockOp::Kind kind) {
  switch (kind) {
    case BlockOp::Kind::kRead:
      return "read";
    case BlockOp::Kind::kWrite:
      return "write";
    case BlockOp::Kind::kFlush:
      return "flush";
  }
  return "?";
}

}  // namespace longshore
