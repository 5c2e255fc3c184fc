// A tensor in pieces (strides in items) and its items one after the other.
#ifdef PHX_STRIDED

struct StridedArguments {
  u64 count, num_dims, item_bytes, is_pack;
  u64 flat, strided;
  i64 sizes[8], strides[8];
};

struct Pair { u64 words[2]; };  // an item of 16 bytes may be aligned to 8 only

// Division of 32 bits is several times as fast as that of 64.
template <class Index>
PHX_INLINE i64 position_of(const StridedArguments& arguments, u64 item) {
  Index rest = static_cast<Index>(item);
  i64 position = 0;
#pragma unroll 1
  for (u64 dim = arguments.num_dims; dim-- > 1;) {
    const Index size = static_cast<Index>(arguments.sizes[dim]), above = rest / size;
    position += static_cast<i64>(rest - above * size) * arguments.strides[dim];
    rest = above;
  }
  return arguments.num_dims ? position + static_cast<i64>(rest) * arguments.strides[0] : 0;
}

template <class Item>
PHX_INLINE void move_items(const StridedArguments& arguments) {
  constexpr int kUnroll = 4;
  const bool is_small = arguments.count <= 0xffffffffull;
  const Run<Item> items = {arguments.count, 0, ~0ull, 0};
  for_each_piece<kUnroll>(items, [&](const u64(&offsets)[kUnroll], const bool(&is_there)[kUnroll]) {
    u64 flat[kUnroll], strided[kUnroll];
    Item moved[kUnroll];
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) {
      const u64 item = offsets[u] / sizeof(Item);
      const i64 position = is_small ? position_of<u32>(arguments, item) : position_of<u64>(arguments, item);
      flat[u] = arguments.flat + offsets[u];
      strided[u] = arguments.strided + static_cast<u64>(position) * sizeof(Item);
    }
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) moved[u] = load<Item>(arguments.is_pack ? strided[u] : flat[u]);
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u)
      if (is_there[u]) store(arguments.is_pack ? flat[u] : strided[u], moved[u]);
  });
}

PHX_KERNEL(strided, StridedArguments) {
  switch (arguments.item_bytes) {
    case 1: return move_items<u8>(arguments);
    case 2: return move_items<u16>(arguments);
    case 4: return move_items<u32>(arguments);
    case 8: return move_items<u64>(arguments);
    default: return move_items<Pair>(arguments);
  }
}

#endif  // PHX_STRIDED
