// Transfers over a faulty drive: the bytes arrive, or an error names what failed.
#include "nvme/drive/drive.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/nvme/scratch_file.h"
#include "tests/nvme/sim_disk.h"

namespace longshore {
namespace {

constexpr Bytes kChunk = 4 * kBlockBytes;

std::unique_ptr<InlineDrive> make_drive(SimMedium& medium, SimOptions options) {
  return std::make_unique<InlineDrive>(
      std::make_unique<SimFile>(&medium, "sim", std::move(options)), kChunk);
}

SimInjector fault_at(int64_t from, bool for_good, BlockOp::Kind kind, int error_number) {
  return [=](int64_t index, const BlockOp& op) -> std::optional<SimFault> {
    if (op.kind != kind || index < from || (index > from && !for_good)) return std::nullopt;
    return SimFault{.kind = SimFault::Kind::kError, .error_number = error_number};
  };
}

// Goal: short transfers, interruptions, refusals and any order change no byte.
TEST(Drive, MovesTheSameBytesWhateverTheFileAnswersInBetween) {
  const BlockBuffer written(37 * kBlockBytes);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SimMedium medium(64 * kBlockBytes);
    const double probability = 0.1 * static_cast<double>(seed % 7);
    const auto drive = make_drive(medium, {.seed = seed,
                                           .depth = 1 + static_cast<int>(seed % 9),
                                           .inject = harmless_faults(seed, probability)});
    fill_random(written.bytes(), seed);
    drive->write(3 * kBlockBytes, written.bytes());
    drive->flush();
    const BlockBuffer read(37 * kBlockBytes);
    drive->read(3 * kBlockBytes, read.bytes());
    ASSERT_TRUE(same_bytes(read.bytes(), written.bytes())) << "seed " << seed;
  }
}

// Concurrent transfers do not mix.
TEST(Drive, KeepsSeveralTransfersApart) {
  SimMedium medium(64 * kBlockBytes);
  const auto drive = make_drive(medium, {.seed = 5, .inject = harmless_faults(5, 0.3)});
  std::vector<BlockBuffer> buffers;
  std::vector<Transfer> transfers(8);
  for (size_t i = 0; i < transfers.size(); ++i) {
    buffers.emplace_back(8 * kBlockBytes);
    fill_random(buffers[i].bytes(), i);
    transfers[i].kind = BlockOp::Kind::kWrite;
    transfers[i].offset = static_cast<Bytes>(i) * 8 * kBlockBytes;
    transfers[i].memory = buffers[i].bytes();
    drive->start(transfers[i]);
  }
  for (Transfer& transfer : transfers) drive->wait(transfer);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const BlockBuffer read(8 * kBlockBytes);
    drive->read(static_cast<Bytes>(i) * 8 * kBlockBytes, read.bytes());
    ASSERT_TRUE(same_bytes(read.bytes(), buffers[i].bytes()));
  }
}

// Goal: urgent reads go before all waiting operations and keep their order among each other.
TEST(Drive, SendsUrgentReadsFirst) {
  SimMedium medium(64 * kBlockBytes);
  std::vector<Bytes> order;
  const auto drive =
      make_drive(medium, {.depth = 1, .in_order = true, .inject = [&](int64_t, const BlockOp& op) {
                            order.push_back(op.offset / kBlockBytes);
                            return std::optional<SimFault>();
                          }});
  std::vector<BlockBuffer> buffers;
  std::vector<Transfer> transfers(5);
  for (size_t i = 0; i < transfers.size(); ++i) {
    buffers.emplace_back(kBlockBytes);
    transfers[i].offset = static_cast<Bytes>(i) * kBlockBytes;
    transfers[i].memory = buffers[i].bytes();
    transfers[i].urgent = i == 2 || i == 4;
    drive->start(transfers[i]);
  }
  for (Transfer& transfer : transfers) drive->wait(transfer);
  EXPECT_EQ(order, (std::vector<Bytes>{2, 4, 0, 1, 3}));
}

// Goal: a bad block is named, and its neighbours can be read.
TEST(Drive, NamesTheBlockThatCannotBeRead) {
  SimMedium medium(64 * kBlockBytes);
  for (Bytes bad = 0; bad < 16; ++bad) {
    const auto covers_bad = [bad](int64_t, const BlockOp& op) -> std::optional<SimFault> {
      const Bytes end = op.offset + static_cast<Bytes>(op.memory.size());
      if (op.offset > bad * kBlockBytes || end <= bad * kBlockBytes) return std::nullopt;
      return SimFault{.kind = SimFault::Kind::kError, .error_number = EIO};
    };
    const auto drive = make_drive(medium, {.inject = covers_bad});
    const BlockBuffer memory(16 * kBlockBytes);
    try {
      drive->read(0, memory.bytes());
      FAIL() << "block " << bad;
    } catch (const DriveError& error) {
      EXPECT_EQ(error.offset(), bad * kBlockBytes);
      EXPECT_EQ(error.error_number(), EIO);
      EXPECT_NE(std::string(error.what()).find("sim: read of 4096 bytes"), std::string::npos)
          << error.what();
    }
  }
}

// A read is tried again after one error.
TEST(Drive, ReadsAgainAfterOneError) {
  SimMedium medium(64 * kBlockBytes);
  for (int64_t n = 0; n < 4; ++n) {
    const auto drive =
        make_drive(medium, {.inject = fault_at(n, false, BlockOp::Kind::kRead, EIO)});
    const BlockBuffer memory(16 * kBlockBytes);
    EXPECT_NO_THROW(drive->read(0, memory.bytes()));
  }
}

// Goal: a permanent fault ends in an error with its number, never in a hang.
TEST(Drive, EndsWhenAFaultStays) {
  const BlockBuffer memory(16 * kBlockBytes);
  for (const int error_number : {EIO, ENOSPC, EDQUOT, EINVAL, EFAULT, EAGAIN, EINTR, ECANCELED}) {
    for (const auto kind : {BlockOp::Kind::kRead, BlockOp::Kind::kWrite, BlockOp::Kind::kFlush}) {
      for (int64_t n = 0; n < 3; ++n) {
        SimMedium medium(64 * kBlockBytes);
        const auto drive = make_drive(medium, {.inject = fault_at(n, true, kind, error_number)});
        try {
          drive->write(0, memory.bytes());
          drive->flush();
          drive->read(0, memory.bytes());
          ADD_FAILURE() << "no error for " << error_number;
        } catch (const DriveError& error) {
          EXPECT_EQ(error.error_number(), error_number) << error.what();
        }
      }
    }
  }
}

// A file that ends too early is found.
TEST(Drive, SeesThatAFileEndsTooEarly) {
  SimMedium medium(64 * kBlockBytes);
  const auto nothing = [](int64_t, const BlockOp&) -> std::optional<SimFault> {
    return SimFault{.kind = SimFault::Kind::kShort, .bytes = 0};
  };
  const auto drive = make_drive(medium, {.inject = nothing});
  const BlockBuffer memory(kBlockBytes);
  EXPECT_THROW(drive->read(0, memory.bytes()), DriveError);
}

// Misaligned transfers, which direct I/O refuses, are refused.
TEST(Drive, RefusesWhatDirectIoWouldRefuse) {
  SimMedium medium(8 * kBlockBytes);
  const auto drive = make_drive(medium, {});
  const BlockBuffer memory(2 * kBlockBytes);
  EXPECT_THROW(drive->read(512, memory.bytes()), CheckFailure);
  EXPECT_THROW(drive->read(0, memory.bytes().first(100)), CheckFailure);
  EXPECT_THROW(drive->read(0, memory.bytes().subspan(512, 4096)), CheckFailure);
  EXPECT_THROW(drive->read(7 * kBlockBytes, memory.bytes()), CheckFailure);
}

// ThreadDrive moves bytes and reports errors to its owner.
TEST(ThreadDrive, MovesBytesAndHandsErrorsToItsOwner) {
  SimMedium medium(64 * kBlockBytes);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ThreadDrive drive(
        [&] {
          return std::make_unique<SimFile>(
              &medium, "sim", SimOptions{.seed = seed, .inject = harmless_faults(seed, 0.3)});
        },
        kChunk);
    const BlockBuffer written(32 * kBlockBytes);
    const BlockBuffer read(32 * kBlockBytes);
    fill_random(written.bytes(), seed);
    drive.write(0, written.bytes());
    drive.flush();
    drive.read(0, read.bytes());
    ASSERT_TRUE(same_bytes(read.bytes(), written.bytes()));
  }
  ThreadDrive broken(
      [&] {
        return std::make_unique<SimFile>(
            &medium, "sim", SimOptions{.inject = fault_at(0, true, BlockOp::Kind::kWrite, ENOSPC)});
      },
      kChunk);
  const BlockBuffer memory(kBlockBytes);
  EXPECT_THROW(broken.write(0, memory.bytes()), DriveError);
  EXPECT_NO_THROW(broken.read(0, memory.bytes()));
  const auto refuse = []() -> std::unique_ptr<BlockFile> { throw IoError("no such file"); };
  EXPECT_THROW(ThreadDrive(refuse, kChunk), IoError);
}

// Goal: a crash may lose, tear or keep an unflushed write; a flushed one stays.
TEST(SimDisk, LosesOnlyWhatWasNotFlushed) {
  SimMedium medium(4 * kBlockBytes);
  const auto drive = make_drive(medium, {});
  const BlockBuffer first(kBlockBytes);
  fill_random(first.bytes(), 1);
  drive->write(0, first.bytes());
  drive->flush();
  const BlockBuffer second(kBlockBytes);
  fill_random(second.bytes(), 2);
  drive->write(kBlockBytes, second.bytes());
  SimRandom random(1);
  int kept = 0;
  int lost = 0;
  int torn = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::vector<std::byte> image = medium.crash(random);
    const std::span<const std::byte> bytes(image);
    ASSERT_TRUE(same_bytes(bytes.first(4096), first.bytes()));
    if (same_bytes(bytes.subspan(4096, 4096), second.bytes())) {
      ++kept;
    } else if (bytes[4096] == std::byte{0} && bytes[4096 + 4095] == std::byte{0}) {
      ++lost;
    } else {
      ++torn;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(lost, 0);
  EXPECT_GT(torn, 1000);
}

}  // namespace
}  // namespace longshore
