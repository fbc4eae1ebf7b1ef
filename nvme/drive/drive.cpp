#include "nvme/drive/drive.h"

#include <cstring>

#include "base/mutex.h"
#include "base/processor.h"

namespace longshore {
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

}  // namespace longshore
