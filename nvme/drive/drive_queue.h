// DriveQueue: cuts transfers into chunks, keeps the file's depth of them in flight, and deals with
// every answer a file may give. One thread. A chunk's way:
//
//   all bytes moved        done
//   some bytes moved       the rest again, from the last whole block
//   nothing moved          failure: the file is shorter than it should be
//   EINTR, EAGAIN, ENOMEM, EBUSY, ECANCELED   again after a growing pause, kMaxRetries times
//   EIO on a read          once more, then in ever smaller pieces: the bad block is named
//   anything else          failure
//
// A failed chunk fails its transfer; the transfer ends when none of its chunks is in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "nvme/drive/block_file.h"

namespace longshore {

struct TransferFailure {
  bool failed = false;
  int error_number = 0;
  Bytes offset = 0;
  Bytes bytes = 0;
  std::string reason;  // instead of errno's text
};

// A read or write of one contiguous range, or a flush. Owned by who starts it; the fields below the
// line belong to the drive until it is done.
struct Transfer {
  BlockOp::Kind kind = BlockOp::Kind::kRead;
  Bytes offset = 0;
  std::span<std::byte> memory;
  bool urgent = false;  // goes before what waits and is not: somebody stands still without it
  // ----
  bool done = true;
  bool waiting = false;  // has chunks that were not sent
  Bytes issued_bytes = 0;
  int chunks_in_flight = 0;
  TransferFailure failure;
};

class DriveQueue {
 public:
  // Consecutive refusals of one chunk before it fails; with the pauses between them about 20 ms.
  static constexpr int kMaxRetries = 16;

  // `file` must outlive the queue. `chunk_bytes` is a multiple of kBlockBytes.
  DriveQueue(BlockFile* file, Bytes chunk_bytes);

  void start(Transfer& transfer);
  bool busy() const { return !waiting_.empty() || in_flight_ > 0; }
  // Sends what fits, waits for at least one completion where something is in flight, and appends
  // the transfers that ended.
  void step(std::vector<Transfer*>& finished);

 private:
  struct Chunk {
    Transfer* transfer = nullptr;
    Bytes offset = 0;  // in the file
    std::span<std::byte> memory;
    Bytes moved = 0;
    Bytes piece = 0;  // bytes of one operation; smaller than the chunk while a bad block is sought
    int refusals = 0;
    int read_errors = 0;
  };

  void fill(std::vector<Transfer*>& finished);
  bool next_chunk(Transfer& transfer, Chunk& chunk) const;
  void send(size_t slot);
  void complete(const BlockCompletion& completion, std::vector<Transfer*>& finished);
  // True when the chunk goes on.
  bool after_error(Chunk& chunk, int error_number);
  bool after_read_error(Chunk& chunk);
  void fail(const Chunk& chunk, int error_number, const std::string& reason);

  BlockFile* file_;
  Bytes chunk_bytes_;
  std::deque<Transfer*> waiting_;  // have chunks that were not sent
  std::vector<Chunk> slots_;
  std::vector<size_t> free_slots_;
  int in_flight_ = 0;
  std::vector<BlockCompletion> completions_;
};

}  // namespace longshore
