// DriveQueue: cuts transfers into chunks, keeps as many in flight as the file's depth, and handles
// every result of the file. One thread. The results of a chunk are handled as follows:
//
//   all bytes moved        done
//   some bytes moved       continue from the last whole block
//   nothing moved          failure: the file is shorter than it should be
//   EINTR, EAGAIN, ENOMEM, EBUSY, ECANCELED   retry after a growing pause, kMaxRetries times
//   EIO on a read          retry once, then in ever smaller pieces, to name the bad block
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
  std::string reason;  // replaces errno's text
};

// A read or write of one contiguous range, or a flush. The starter owns it; the drive owns the
// fields below the line until it is done.
struct Transfer {
  BlockOp::Kind kind = BlockOp::Kind::kRead;
  Bytes offset = 0;
  std::span<std::byte> memory;
  bool urgent = false;  // precedes waiting transfers that are not urgent, because a lane waits for
                        // it
  // ----
  bool done = true;
  bool waiting = false;  // has unsent chunks
  Bytes issued_bytes = 0;
  int chunks_in_flight = 0;
  TransferFailure failure;
};

class DriveQueue {
 public:
  // The retries of one refused chunk before it fails; their pauses total about 20 ms.
  static constexpr int kMaxRetries = 16;

  // `file` must outlive the queue. `chunk_bytes` is a multiple of kBlockBytes.
  DriveQueue(BlockFile* file, Bytes chunk_bytes);

  void start(Transfer& transfer);
  bool busy() const { return !waiting_.empty() || in_flight_ > 0; }
  // Sends chunks up to the depth, waits for at least one completion if any is in flight, and
  // appends the finished transfers.
  void step(std::vector<Transfer*>& finished);

 private:
  struct Chunk {
    Transfer* transfer = nullptr;
    Bytes offset = 0;  // in the file
    std::span<std::byte> memory;
    Bytes moved = 0;
    Bytes piece = 0;  // bytes of one operation; less than the chunk while searching a bad block
    int refusals = 0;
    int read_errors = 0;
  };

  void fill(std::vector<Transfer*>& finished);
  bool next_chunk(Transfer& transfer, Chunk& chunk) const;
  void send(size_t slot);
  void complete(const BlockCompletion& completion, std::vector<Transfer*>& finished);
  // Both return true if the chunk must be sent again.
  bool after_error(Chunk& chunk, int error_number);
  bool after_read_error(Chunk& chunk);
  void fail(const Chunk& chunk, int error_number, const std::string& reason);

  BlockFile* file_;
  Bytes chunk_bytes_;
  std::deque<Transfer*> waiting_;  // have unsent chunks
  std::vector<Chunk> slots_;
  std::vector<size_t> free_slots_;
  int in_flight_ = 0;
  std::vector<BlockCompletion> completions_;
};

}  // namespace longshore
