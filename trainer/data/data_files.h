// DataFiles: the files that data.train and data.eval name: paths, and hub ids of data sets in the
// local Hugging Face cache. Plain functions.
#pragma once

#include "config/run_config.h"

namespace longshore {

// `data` with every id replaced by its files, which have its weight each. A path to what is there
// stays. DataError for an id of what is not.
DataSection with_data_files(DataSection data);

}  // namespace longshore
