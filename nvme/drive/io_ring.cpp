#include "nvme/drive/io_ring.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/errors.h"
#include "base/log.h"
#include "base/mutex.h"
#include "nvme/drive/block_file.h"

// The oldest supported liburing lacks these flags.
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

namespace longshore {
namespace {

// The flags are in order of preference: completions run in our own thread on request (6.1), without
// interrupts (5.19), default.
constexpr std::array<unsigned, 3> kSetupFlags = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0};
// The limit of consecutive refusals of io_uring_enter, with pauses, before the ring fails.
constexpr int kMaxRefusals = 1000;
constexpr std::chrono::microseconds kRefusalPause{1000};

bool is_passing(int error_number) {
  return error_number == EINTR || error_number == EAGAIN || error_number == EBUSY ||
         error_number == ENOMEM;
}

std::vector<std::span<std::byte>> cut_into_slabs(const std::vector<std::span<std::byte>>& memory) {
  std::vector<std::span<std::byte>> slabs;
  for (std::span<std::byte> rest : memory) {
    while (!rest.empty()) {
      const size_t length = std::min(rest.size(), static_cast<size_t>(IoRing::kMaxSlabBytes));
      slabs.push_back(rest.first(length));
      rest = rest.subspan(length);
    }
  }
  return slabs;
}

void report_unregistered(Bytes unregistered, Bytes wanted, int error_number) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string text = "io_uring: " + format_bytes(unregistered) + " of " + format_bytes(wanted) +
                     " of the I/O memory could not be registered (" + std::strerror(error_number) +
                     "): reads cost more CPU";
  if (error_number == ENOMEM && limit.rlim_cur != RLIM_INFINITY) {
    text += "; ulimit -l is " + std::to_string(limit.rlim_cur / 1024) + ", at least " +
            std::to_string(2 * wanted / kKiB) + " is needed for each drive of each rank";
  }
  log_info(text);
}

}  // namespace

std::unique_ptr<IoRing> IoRing::try_make(const DirectFile* file, const IoRingOptions& options,
                                         std::string& reason) {
  LONGSHORE_CHECK(options.depth >= 1);
  std::unique_ptr<IoRing> ring(new IoRing(file, options.depth));
  int error = ring->set_up();
  if (error != 0) {
    reason = std::string("io_uring_setup: ") + std::strerror(error);
    return nullptr;
  }
  error = ring->probe();
  if (error != 0) {
    reason = std::string("a first read: ") + std::strerror(error);
    return nullptr;
  }
  ring->register_memory(options.memory);
  return ring;
}

int IoRing::set_up() {
  int result = -EINVAL;
  for (const unsigned flags : kSetupFlags) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE;
    params.cq_entries = 2 * static_cast<unsigned>(depth_);
    result = io_uring_queue_init_params(static_cast<unsigned>(depth_), &ring_, &params);
    if (result != -EINVAL) break;  // EINVAL means an unknown flag: try the next set
  }
  if (result < 0) return -result;
  ring_exists_ = true;
  depth_ = std::min(depth_, static_cast<int>(ring_.sq.ring_entries));
  io_uring_ring_dontfork(&ring_);
  io_uring_register_ring_fd(&ring_);  // saves a lookup per call, if the kernel supports it
  const int fd = file_->fd().get();
  file_registered_ = io_uring_register_files(&ring_, &fd, 1) == 0;
  return 0;
}

// Registers slab by slab, because one call for all may register only some and report success.
void IoRing::register_memory(const std::vector<std::span<std::byte>>& memory) {
  const std::vector<std::span<std::byte>> slabs = cut_into_slabs(memory);
  if (slabs.empty()) return;
  Bytes wanted = 0;
  for (const std::span<std::byte> slab : slabs) wanted += static_cast<Bytes>(slab.size());
  int result = io_uring_register_buffers_sparse(&ring_, static_cast<unsigned>(slabs.size()));
  for (size_t i = 0; i < slabs.size() && result >= 0; ++i) {
    const iovec range = {slabs[i].data(), slabs[i].size()};
    const __u64 tag = 0;
    result =
        io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(i), &range, &tag, 1);
    if (result == 1) slabs_.push_back({slabs[i], static_cast<int>(i)});
  }
  unregistered_bytes_ = wanted - registered_bytes();
  if (unregistered_bytes_ > 0) {
    report_unregistered(unregistered_bytes_, wanted, result < 0 ? -result : ENOMEM);
  }
}

Bytes IoRing::registered_bytes() const {
  Bytes sum = 0;
  for (const Slab& slab : slabs_) sum += static_cast<Bytes>(slab.memory.size());
  return sum;
}

// Proves that the ring works: enter may be blocked, or the file may refuse. Returns an errno or 0.
int IoRing::probe() {
  io_uring_prep_nop(io_uring_get_sqe(&ring_));
  int result = io_uring_submit_and_wait(&ring_, 1);
  if (result < 0) return -result;
  io_uring_cqe* cqe = nullptr;
  result = io_uring_wait_cqe(&ring_, &cqe);
  if (result < 0) return -result;
  result = cqe->res;
  io_uring_cqe_seen(&ring_, cqe);
  if (result < 0) return -result;
  if (file_->size_bytes() < kBlockBytes) return EINVAL;
  const BlockBuffer block(kBlockBytes);
  BlockOp op;
  op.memory = block.bytes();
  submit(op);
  std::vector<BlockCompletion> completions;
  try {
    reap(completions);
  } catch (const IoError&) {
    return EPERM;
  }
  return completions[0].result < 0 ? static_cast<int>(-completions[0].result) : 0;
}

IoRing::~IoRing() {
  if (!ring_exists_) return;
  std::vector<BlockCompletion> rest;
  try {
    while (in_flight_ > 0) reap(rest);
  } catch (const std::exception& error) {
    log_error(error.what());
  }
  io_uring_queue_exit(&ring_);
}

const IoRing::Slab* IoRing::slab_of(std::span<const std::byte> memory) const {
  for (const Slab& slab : slabs_) {
    if (memory.data() >= slab.memory.data() &&
        memory.data() + memory.size() <= slab.memory.data() + slab.memory.size()) {
      return &slab;
    }
  }
  return nullptr;
}

io_uring_sqe* IoRing::next_sqe() {
  for (int refusals = 0;; ++refusals) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe != nullptr) return sqe;
    const int result = io_uring_submit(&ring_);
    if (result < 0 && (!is_passing(-result) || refusals > kMaxRefusals)) {
      throw IoError("io_uring submit", path(), -result);
    }
    if (result < 0) pause(kRefusalPause);
  }
}

void IoRing::submit(const BlockOp& op) {
  LONGSHORE_CHECK(in_flight_ < depth_) << path();
  io_uring_sqe* sqe = next_sqe();
  const int fd = file_registered_ ? 0 : file_->fd().get();
  const auto length = static_cast<unsigned>(op.memory.size());
  const auto offset = static_cast<__u64>(op.offset);
  const Slab* slab = slab_of(op.memory);
  if (op.kind == BlockOp::Kind::kFlush) {
    io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
  } else if (op.kind == BlockOp::Kind::kRead) {
    if (slab != nullptr) {
      io_uring_prep_read_fixed(sqe, fd, op.memory.data(), length, offset, slab->index);
    } else {
      io_uring_prep_read(sqe, fd, op.memory.data(), length, offset);
    }
  } else if (slab != nullptr) {
    io_uring_prep_write_fixed(sqe, fd, op.memory.data(), length, offset, slab->index);
  } else {
    io_uring_prep_write(sqe, fd, op.memory.data(), length, offset);
  }
  if (file_registered_) sqe->flags |= IOSQE_FIXED_FILE;
  sqe->user_data = op.tag;
  ++in_flight_;
}

void IoRing::collect(std::vector<BlockCompletion>& completions) {
  unsigned head = 0;
  unsigned count = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    completions.push_back({cqe->user_data, cqe->res});
    ++count;
  }
  io_uring_cq_advance(&ring_, count);
  in_flight_ -= static_cast<int>(count);
}

void IoRing::reap(std::vector<BlockCompletion>& completions) {
  LONGSHORE_CHECK(in_flight_ > 0) << path();
  const size_t before = completions.size();
  for (int refusals = 0; completions.size() == before; ++refusals) {
    const int result = io_uring_submit_and_wait(&ring_, 1);
    collect(completions);
    if (result >= 0 || completions.size() > before) continue;
    if (!is_passing(-result) || refusals > kMaxRefusals) {
      throw IoError("io_uring enter", path(), -result);
    }
    if (result != -EINTR) pause(kRefusalPause);
  }
}

namespace {

int64_t perform(int fd, const BlockOp& op) {
  ssize_t result = 0;
  switch (op.kind) {
    case BlockOp::Kind::kRead:
      result = pread(fd, op.memory.data(), op.memory.size(), op.offset);
      break;
    case BlockOp::Kind::kWrite:
      result = pwrite(fd, op.memory.data(), op.memory.size(), op.offset);
      break;
    case BlockOp::Kind::kFlush:
      result = fdatasync(fd);
      break;
  }
  return result < 0 ? -errno : result;
}

}  // namespace

IoPool::IoPool(const DirectFile* file, int depth) : file_(file), depth_(depth) {
  LONGSHORE_CHECK(depth >= 1);
  for (int i = 0; i < std::min(depth, kMaxThreads); ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

IoPool::~IoPool() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  to_workers_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void IoPool::submit(const BlockOp& op) {
  {
    const MutexLock lock(mutex_);
    LONGSHORE_CHECK(in_flight_ < depth_);
    ++in_flight_;
    waiting_.push_back(op);
  }
  to_workers_.notify_one();
}

void IoPool::reap(std::vector<BlockCompletion>& completions) {
  MutexLock lock(mutex_);
  LONGSHORE_CHECK(in_flight_ > 0);
  to_owner_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) { return !completed_.empty(); });
  in_flight_ -= static_cast<int>(completed_.size());
  completions.insert(completions.end(), completed_.begin(), completed_.end());
  completed_.clear();
}

void IoPool::work() {
  MutexLock lock(mutex_);
  for (;;) {
    to_workers_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const BlockOp op = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const int64_t result = perform(file_->fd().get(), op);
    lock.lock();
    completed_.push_back({op.tag, result});
    to_owner_.notify_one();
  }
}

}  // namespace longshore
