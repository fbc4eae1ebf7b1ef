#include "nvme/drive/drive.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/errors.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/processor.h"
#include "nvme/drive/io_ring.h"

namespace longshore {
namespace {

constexpr int kMaxPauseMicroseconds = 4096;
// Each level of a repeated read error makes the pieces this many times smaller.
constexpr Bytes kSplit = 16;

bool is_refusal(int error_number) {
  return error_number == EINTR || error_number == EAGAIN || error_number == ENOMEM ||
         error_number == EBUSY || error_number == ECANCELED;
}

std::string reason_of(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "the file system is full, although the file was preallocated";
    case EFAULT:
    case EINVAL:
      return "the file system refuses direct I/O of this offset, length or memory";
    default:
      return {};
  }
}

}  // namespace

DriveQueue::DriveQueue(BlockFile* file, Bytes chunk_bytes)
    : file_(file), chunk_bytes_(chunk_bytes), slots_(static_cast<size_t>(file->depth())) {
  LONGSHORE_CHECK(chunk_bytes > 0 && chunk_bytes % kBlockBytes == 0) << chunk_bytes;
  for (size_t i = slots_.size(); i > 0; --i) free_slots_.push_back(i - 1);
}

void DriveQueue::start(Transfer& transfer) {
  const auto bytes = static_cast<Bytes>(transfer.memory.size());
  LONGSHORE_CHECK(transfer.offset >= 0 && transfer.offset % kBlockBytes == 0 &&
                  bytes % kBlockBytes == 0 && transfer.offset + bytes <= file_->size_bytes())
      << file_->path() << ": " << bytes << " bytes at " << transfer.offset << " of "
      << file_->size_bytes();
  LONGSHORE_CHECK(reinterpret_cast<uintptr_t>(transfer.memory.data()) % kBlockBytes == 0);
  transfer.issued_bytes = 0;
  transfer.chunks_in_flight = 0;
  transfer.failure = {};
  transfer.waiting = true;
  const auto place =
      transfer.urgent ? std::ranges::find(waiting_, false, &Transfer::urgent) : waiting_.end();
  waiting_.insert(place, &transfer);
}

bool DriveQueue::next_chunk(Transfer& transfer, Chunk& chunk) const {
  const auto bytes = static_cast<Bytes>(transfer.memory.size());
  chunk = {};
  chunk.transfer = &transfer;
  if (transfer.kind == BlockOp::Kind::kFlush) {
    transfer.issued_bytes = 0;
    return true;  // a flush is one chunk
  }
  const Bytes from = transfer.issued_bytes;
  const Bytes length = std::min(chunk_bytes_, bytes - from);
  chunk.offset = transfer.offset + from;
  chunk.memory = transfer.memory.subspan(static_cast<size_t>(from), static_cast<size_t>(length));
  chunk.piece = length;
  transfer.issued_bytes += length;
  return transfer.issued_bytes == bytes;
}

void DriveQueue::fill(std::vector<Transfer*>& finished) {
  while (!waiting_.empty() && !free_slots_.empty()) {
    Transfer& transfer = *waiting_.front();
    const bool nothing_to_move = transfer.kind != BlockOp::Kind::kFlush && transfer.memory.empty();
    if (transfer.failure.failed || nothing_to_move) {
      waiting_.pop_front();
      transfer.waiting = false;
      if (transfer.chunks_in_flight == 0) finished.push_back(&transfer);
      continue;
    }
    const size_t slot = free_slots_.back();
    free_slots_.pop_back();
    if (next_chunk(transfer, slots_[slot])) {
      waiting_.pop_front();
      transfer.waiting = false;
    }
    ++transfer.chunks_in_flight;
    ++in_flight_;
    send(slot);
  }
}

void DriveQueue::send(size_t slot) {
  const Chunk& chunk = slots_[slot];
  const Bytes left = static_cast<Bytes>(chunk.memory.size()) - chunk.moved;
  const Bytes length = std::min(left, chunk.piece);
  BlockOp op;
  op.kind = chunk.transfer->kind;
  op.tag = slot;
  op.offset = chunk.offset + chunk.moved;
  op.memory = chunk.memory.subspan(static_cast<size_t>(chunk.moved), static_cast<size_t>(length));
  file_->submit(op);
}

void DriveQueue::step(std::vector<Transfer*>& finished) {
  fill(finished);
  if (in_flight_ == 0) return;
  completions_.clear();
  file_->reap(completions_);
  for (const BlockCompletion& completion : completions_) complete(completion, finished);
}

void DriveQueue::complete(const BlockCompletion& completion, std::vector<Transfer*>& finished) {
  const auto slot = static_cast<size_t>(completion.tag);
  LONGSHORE_CHECK(slot < slots_.size() && slots_[slot].transfer != nullptr)
      << file_->path() << ": a completion of nothing, tag " << completion.tag;
  Chunk& chunk = slots_[slot];
  const auto bytes = static_cast<Bytes>(chunk.memory.size());
  bool more = false;
  if (completion.result < 0) {
    more = after_error(chunk, static_cast<int>(-completion.result));
  } else if (bytes > 0) {
    const Bytes left = std::min(bytes - chunk.moved, chunk.piece);
    LONGSHORE_CHECK(completion.result <= left) << file_->path();
    if (completion.result == 0) {
      fail(chunk, EIO, "the file ends before");
    } else {
      // A short transfer may end inside a block; that block is moved again.
      const Bytes whole = completion.result == left ? completion.result
                                                    : completion.result / kBlockBytes * kBlockBytes;
      chunk.refusals = whole > 0 ? 0 : chunk.refusals + 1;
      chunk.moved += whole;
      more = chunk.moved < bytes;
      if (chunk.refusals > kMaxRetries) {
        fail(chunk, EIO, "only parts of a block are moved");
        more = false;
      }
    }
  }
  if (more) {
    send(slot);
    return;
  }
  Transfer* transfer = chunk.transfer;
  chunk.transfer = nullptr;
  free_slots_.push_back(slot);
  --in_flight_;
  if (--transfer->chunks_in_flight == 0 && !transfer->waiting) finished.push_back(transfer);
}

bool DriveQueue::after_error(Chunk& chunk, int error_number) {
  if (is_refusal(error_number) && ++chunk.refusals <= kMaxRetries) {
    const int pause = std::min(1 << std::min(chunk.refusals, 20), kMaxPauseMicroseconds);
    file_->pause(std::chrono::microseconds(pause));
    return true;
  }
  if (error_number == EIO && chunk.transfer->kind == BlockOp::Kind::kRead) {
    return after_read_error(chunk);
  }
  fail(chunk, error_number, reason_of(error_number));
  return false;
}

bool DriveQueue::after_read_error(Chunk& chunk) {
  if (++chunk.read_errors == 1) return true;
  if (chunk.piece <= kBlockBytes) {
    fail(chunk, EIO, "the drive cannot read this block");
    return false;
  }
  chunk.piece = align_up(std::max(chunk.piece / kSplit, kBlockBytes), kBlockBytes);
  return true;
}

void DriveQueue::fail(const Chunk& chunk, int error_number, const std::string& reason) {
  TransferFailure& failure = chunk.transfer->failure;
  if (failure.failed) return;  // keeps the first failure
  failure.failed = true;
  failure.error_number = error_number;
  failure.offset = chunk.offset + chunk.moved;
  failure.bytes = std::min(static_cast<Bytes>(chunk.memory.size()) - chunk.moved, chunk.piece);
  failure.reason = reason;
}

namespace {

[[noreturn]] void throw_failure(const Transfer& transfer, const std::string& path) {
  const TransferFailure& failure = transfer.failure;
  std::string text = path + ": " + std::string(name_of(transfer.kind));
  if (transfer.kind != BlockOp::Kind::kFlush) {
    text += " of " + std::to_string(failure.bytes) + " bytes at offset " +
            std::to_string(failure.offset);
  }
  text += ": " + (failure.reason.empty() ? std::string(std::strerror(failure.error_number))
                                         : failure.reason);
  throw DriveError(text, failure.error_number, failure.offset);
}

}  // namespace

void Drive::run(BlockOp::Kind kind, Bytes offset, std::span<std::byte> memory) {
  Transfer transfer;
  transfer.kind = kind;
  transfer.offset = offset;
  transfer.memory = memory;
  start(transfer);
  wait(transfer);
}

void Drive::read(Bytes offset, std::span<std::byte> memory) {
  run(BlockOp::Kind::kRead, offset, memory);
}

void Drive::write(Bytes offset, std::span<const std::byte> memory) {
  // The struct serves both directions; a write never changes its memory.
  run(BlockOp::Kind::kWrite, offset, {const_cast<std::byte*>(memory.data()), memory.size()});
}

void Drive::flush() {
  run(BlockOp::Kind::kFlush, 0, {});
}

std::vector<Drive*> borrow(const std::vector<std::unique_ptr<Drive>>& drives) {
  std::vector<Drive*> tied;
  for (const auto& drive : drives) tied.push_back(drive.get());
  return tied;
}

void wait_all(const std::vector<Drive*>& drives, std::vector<Transfer>& transfers) {
  std::exception_ptr first;
  for (size_t i = 0; i < transfers.size(); ++i) {
    try {
      drives[i]->wait(transfers[i]);
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

InlineDrive::InlineDrive(std::unique_ptr<BlockFile> file, Bytes chunk_bytes)
    : file_(std::move(file)), queue_(file_.get(), chunk_bytes) {}

void InlineDrive::start(Transfer& transfer) {
  transfer.done = false;
  queue_.start(transfer);
}

void InlineDrive::wait(Transfer& transfer) {
  while (!transfer.done) {
    finished_.clear();
    queue_.step(finished_);
    for (Transfer* finished : finished_) finished->done = true;
  }
  if (transfer.failure.failed) throw_failure(transfer, path());
}

ThreadDrive::ThreadDrive(MakeFile make_file, Bytes chunk_bytes) {
  thread_ =
      std::thread([this, make = std::move(make_file), chunk_bytes] { run(make, chunk_bytes); });
  MutexLock lock(mutex_);
  to_owner_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) { return ready_ || broken_ != nullptr; });
  if (broken_ == nullptr) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(broken_);
}

ThreadDrive::~ThreadDrive() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  to_thread_.notify_one();
  thread_.join();
}

void ThreadDrive::start(Transfer& transfer) {
  {
    const MutexLock lock(mutex_);
    transfer.done = false;
    incoming_.push_back(&transfer);
  }
  to_thread_.notify_one();
}

void ThreadDrive::wait(Transfer& transfer) {
  MutexLock lock(mutex_);
  // HOST WAIT: the caller needs the bytes, or their durability.
  to_owner_.wait(lock,
                 [&]() LONGSHORE_REQUIRES(mutex_) { return transfer.done || broken_ != nullptr; });
  if (!transfer.done) std::rethrow_exception(broken_);
  if (transfer.failure.failed) throw_failure(transfer, path_);
}

void ThreadDrive::run(const MakeFile& make_file, Bytes chunk_bytes) {
  ask_for_short_slices();
  try {
    const std::unique_ptr<BlockFile> file = make_file();
    DriveQueue queue(file.get(), chunk_bytes);
    {
      const MutexLock lock(mutex_);
      path_ = file->path();
      kind_ = file->kind();
      size_bytes_ = file->size_bytes();
      ready_ = true;
    }
    to_owner_.notify_all();
    serve(queue);
  } catch (...) {
    const MutexLock lock(mutex_);
    broken_ = std::current_exception();
    to_owner_.notify_all();
  }
}

// Waits for work and passes new transfers to the queue. Returns false when all transfers are done
// and the owner has asked the thread to stop.
bool ThreadDrive::take_incoming(DriveQueue& queue) {
  std::vector<Transfer*> taken;
  {
    MutexLock lock(mutex_);
    to_thread_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) {
      return stop_ || !incoming_.empty() || queue.busy();
    });
    taken.swap(incoming_);
  }
  for (Transfer* transfer : taken) queue.start(*transfer);
  return queue.busy();
}

void ThreadDrive::serve(DriveQueue& queue) {
  std::vector<Transfer*> finished;
  while (take_incoming(queue)) {
    finished.clear();
    queue.step(finished);
    if (finished.empty()) continue;
    {
      const MutexLock lock(mutex_);
      for (Transfer* transfer : finished) transfer->done = true;
    }
    to_owner_.notify_all();
  }
}

namespace {

// Logs once per process, whatever the number of drives.
void say_that_threads_serve(const std::string& reason) {
  static std::once_flag said;
  std::call_once(said, [&] {
    log_info("io_uring does not work here (" + reason +
             "): threads with pread and pwrite are used");
  });
}

}  // namespace

std::unique_ptr<BlockFile> make_block_file(const DirectFile* file, int depth, IoEngine engine,
                                           const std::vector<std::span<std::byte>>& memory) {
  if (engine != IoEngine::kThreads) {
    std::string reason;
    std::unique_ptr<IoRing> ring =
        IoRing::try_make(file, {.depth = depth, .memory = memory}, reason);
    if (ring != nullptr) return ring;
    if (engine == IoEngine::kRing) throw IoError(file->path() + ": no io_uring: " + reason);
    say_that_threads_serve(reason);
  }
  return std::make_unique<IoPool>(file, depth);
}

OpenDrive::OpenDrive(const DriveOptions& options) : file_(options.file) {
  drive_ = std::make_unique<ThreadDrive>(
      [this, options] {
        return make_block_file(&file_, options.depth, options.engine, options.memory);
      },
      options.chunk_bytes);
}

}  // namespace longshore
