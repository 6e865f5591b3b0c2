//! Random histories of sequences, and the rules of each call.

use std::collections::HashMap;

use super::*;

/// Numbers of a seed (Steele, Lea and Flood: SplitMix64, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % n.max(1) as u64) as usize
    }
}

/// What a cache would hold: the tokens that were written to each row of each block.
struct Rows {
    page_size: usize,
    rows: Vec<Option<u32>>,
    host: Vec<Option<u32>>,
}

impl Rows {
    fn transfer(&mut self, transfers: &[BlockTransfer]) {
        let size = self.page_size;
        let rows = |block: u32| block as usize * size..(block as usize + 1) * size;
        for transfer in transfers {
            match *transfer {
                BlockTransfer::Copy { from, to } => self.rows.copy_within(rows(from), rows(to).start),
                BlockTransfer::ToHost { block, host } => {
                    self.host[rows(host)].copy_from_slice(&self.rows[rows(block)]);
                    self.rows[rows(block)].fill(None);
                }
                BlockTransfer::FromHost { host, block } => {
                    self.rows[rows(block)].copy_from_slice(&self.host[rows(host)]);
                    self.host[rows(host)].fill(None);
                }
            }
        }
    }

    fn place(&mut self, blocks: &[u32], position: usize) -> &mut Option<u32> {
        &mut self.rows[blocks[position / self.page_size] as usize * self.page_size + position % self.page_size]
    }
}

/// Sequences come, grow, fork, are cut and go; every sequence always finds its own tokens, and in the end all blocks are free.
#[test]
fn blocks_never_leak_and_are_never_shared_for_writing() {
    let mut swapped_in = 0;
    for seed in 0..90 {
        let mut random = Random(seed);
        let page_size = [1, 2, 4, 7][random.below(4)];
        let total = 4 + random.below(40);
        let caching = random.below(4) > 0;
        let host = random.below(3) * random.below(20);
        let mut manager = PagedKvCacheManager::new(total, page_size, caching).host_blocks(host);
        let mut rows = Rows { page_size, rows: vec![None; total * page_size], host: vec![None; host * page_size] };
        let mut texts: HashMap<RequestId, Vec<u32>> = HashMap::new();
        let mut next = 0;
        for _ in 0..400 {
            let mut names: Vec<RequestId> = texts.keys().copied().collect();
            names.sort_unstable();
            let one = names.get(random.below(names.len())).copied();
            match (random.below(10), one) {
                (0..=1, _) | (_, None) => {
                    // Few letters, so that beginnings repeat.
                    let prompt: Vec<u32> =
                        (0..1 + random.below(6 * page_size)).map(|_| random.below(2) as u32).collect();
                    manager.claim(next).unwrap();
                    let cached = manager.reuse(next, &prompt).unwrap();
                    assert!(cached < prompt.len() && cached.is_multiple_of(page_size) && (caching || cached == 0));
                    // What comes from the host may be moved later.
                    if random.below(2) == 0 {
                        rows.transfer(&manager.take_transfers());
                    }
                    texts.insert(next, prompt[..cached].to_vec());
                    next += 1;
                }
                (2, Some(name)) => {
                    manager.release(name).unwrap();
                    texts.remove(&name);
                }
                (3, Some(name)) => {
                    manager.fork(name, next).unwrap();
                    texts.insert(next, texts[&name].clone());
                    next += 1;
                }
                (4, Some(name)) => {
                    let length = random.below(texts[&name].len() + 1);
                    manager.truncate(name, length).unwrap();
                    texts.get_mut(&name).unwrap().truncate(length);
                }
                (_, Some(name)) => {
                    let before = manager.clone();
                    let text = texts.get_mut(&name).unwrap();
                    let more: Vec<u32> = (0..1 + random.below(2 * page_size)).map(|_| random.below(2) as u32).collect();
                    match manager.reserve(name, text.len() + more.len()) {
                        Ok(transfers) => {
                            rows.transfer(&transfers);
                            let blocks = manager.blocks(name).unwrap().to_vec();
                            for (i, token) in (text.len()..).zip(more) {
                                let block = blocks[i / page_size];
                                assert_eq!(manager.pool.references(block), 1, "writes to a shared block");
                                *rows.place(&blocks, i) = Some(token);
                                text.push(token);
                            }
                            manager.step(name, text).unwrap();
                        }
                        Err(KvCacheError::Full { needed, available, .. }) => {
                            assert!(needed > available);
                            assert_eq!(manager.blocks(name), before.blocks(name));
                        }
                        Err(error) => assert!(matches!(error, KvCacheError::TooLong { .. }), "{error}"),
                    }
                }
            }
            manager.pool.check();
            if !manager.pool.transfers.is_empty() {
                continue;
            }
            for (name, text) in &texts {
                let blocks = manager.blocks(*name).unwrap().to_vec();
                assert_eq!(manager.length(*name), Some(text.len()));
                assert!(blocks.len() >= text.len().div_ceil(page_size));
                for (i, token) in text.iter().enumerate() {
                    assert_eq!(*rows.place(&blocks, i), Some(*token), "seed {seed}, sequence {name}, position {i}");
                }
            }
        }
        for name in texts.keys() {
            manager.release(*name).unwrap();
        }
        assert_eq!(manager.free_blocks(), total);
        let metrics = manager.metrics();
        assert!(metrics.swapped_in_blocks + metrics.host_evicted_blocks <= metrics.swapped_out_blocks);
        swapped_in += metrics.swapped_in_blocks;
        manager.clear_prefix_cache();
        assert_eq!(manager.host_usage(), (host, 0));
        manager.pool.check();
        assert_eq!(manager.free_blocks(), total);
    }
    assert!(swapped_in > 20, "{swapped_in}");
}

/// A sequence with tokens that were computed.
fn sequence(manager: &mut PagedKvCacheManager, name: RequestId, tokens: &[u32]) -> usize {
    manager.claim(name).unwrap();
    let cached = manager.reuse(name, tokens).unwrap();
    manager.reserve(name, tokens.len()).unwrap();
    manager.step(name, tokens).unwrap();
    cached
}

#[test]
fn the_least_recently_used_prefix_gives_way_the_end_first() {
    let mut manager = PagedKvCacheManager::new(4, 2, true);
    assert_eq!(sequence(&mut manager, 0, &[1, 1, 2, 2, 3]), 0);
    manager.release(0).unwrap();
    assert_eq!(sequence(&mut manager, 1, &[5, 5]), 0);
    manager.release(1).unwrap();
    // One of the four blocks holds nothing; of the others the end of the first text was given back first.
    assert_eq!(sequence(&mut manager, 2, &[7, 7, 8]), 0);
    assert_eq!(manager.metrics().evicted_blocks, 1);
    manager.release(2).unwrap();
    assert_eq!(sequence(&mut manager, 3, &[1, 1, 2, 2, 3]), 2);
    manager.release(3).unwrap();
    // The whole prompt is there, and its last token is computed nevertheless.
    assert_eq!(sequence(&mut manager, 4, &[1, 1, 2, 2]), 2);
    let metrics = manager.metrics();
    assert_eq!((metrics.prefix_queried_tokens, metrics.prefix_hit_tokens), (5 + 2 + 3 + 5 + 4, 4));
}

#[test]
fn what_gives_way_goes_to_the_host_and_comes_back() {
    let mut manager = PagedKvCacheManager::new(3, 2, true).host_blocks(4);
    sequence(&mut manager, 0, &[1, 1, 2, 2, 3]);
    manager.release(0).unwrap();
    // The end of the first text gives way first, and then its beginning.
    assert_eq!(sequence(&mut manager, 1, &[5, 5, 6, 6, 7]), 0);
    manager.release(1).unwrap();
    let metrics = manager.metrics();
    assert_eq!((metrics.evicted_blocks, metrics.swapped_out_blocks, manager.host_usage()), (2, 2, (4, 2)));
    // Both come back, the beginning to where it was not; what they take the place of goes where they were not yet.
    manager.claim(2).unwrap();
    assert_eq!(manager.reuse(2, &[1, 1, 2, 2, 9]).unwrap(), 4);
    let blocks = manager.blocks(2).unwrap().to_vec();
    let transfers = manager.reserve(2, 5).unwrap();
    let came: Vec<BlockTransfer> =
        transfers.iter().copied().filter(|transfer| matches!(transfer, BlockTransfer::FromHost { .. })).collect();
    let from = |host: u32, block: usize| BlockTransfer::FromHost { host, block: blocks[block] };
    assert_eq!(came, [from(1, 0), from(0, 1)], "{transfers:?}");
    let metrics = manager.metrics();
    assert_eq!((metrics.swapped_in_blocks, metrics.prefix_hit_tokens), (2, 4));
    manager.step(2, &[1, 1, 2, 2, 9]).unwrap();
    manager.release(2).unwrap();
    // What could not be moved is not found.
    manager.claim(3).unwrap();
    assert_eq!(manager.reuse(3, &[5, 5, 6, 6, 7]).unwrap(), 4);
    let transfers = manager.take_transfers();
    manager.discard(&transfers);
    manager.release(3).unwrap();
    assert_eq!(sequence(&mut manager, 4, &[5, 5, 6, 6, 7]), 0);
    manager.release(4).unwrap();
    manager.pool.check();
    // What is computed although the host has it is no longer there, and has the number that it had: what is behind it is found.
    assert_eq!(sequence(&mut manager, 5, &[8, 8, 9, 9, 7]), 0);
    manager.release(5).unwrap();
    assert_eq!(manager.host_usage(), (4, 3));
    manager.claim(6).unwrap();
    manager.reserve(6, 3).unwrap();
    manager.step(6, &[5, 5, 6]).unwrap();
    manager.pool.check();
    manager.release(6).unwrap();
    manager.claim(7).unwrap();
    assert_eq!(manager.reuse(7, &[5, 5, 6, 6, 7]).unwrap(), 4);
}

#[test]
fn equal_texts_that_are_computed_at_once_end_up_in_one_block() {
    let mut manager = PagedKvCacheManager::new(8, 2, true);
    for name in 0..2 {
        manager.claim(name).unwrap();
        assert_eq!(manager.reuse(name, &[1, 2, 3]).unwrap(), 0);
        manager.reserve(name, 3).unwrap();
    }
    assert_eq!(manager.free_blocks(), 4);
    (0..2).for_each(|name| manager.step(name, &[1, 2, 3]).unwrap());
    assert_eq!(manager.free_blocks(), 5);
    assert_eq!(manager.blocks(0).unwrap()[0], manager.blocks(1).unwrap()[0]);
    assert_ne!(manager.blocks(0).unwrap()[1], manager.blocks(1).unwrap()[1]);
    let (table, columns) = manager.lookup_table(&[0, 1]).unwrap();
    assert_eq!((table.len(), columns), (4, 2));
}

#[test]
fn a_fork_shares_until_it_writes() {
    let mut manager = PagedKvCacheManager::new(8, 4, true);
    sequence(&mut manager, 0, &[1, 2, 3, 4, 5, 6]);
    manager.fork(0, 1).unwrap();
    assert_eq!(manager.blocks(0), manager.blocks(1));
    let from = manager.blocks(1).unwrap()[1];
    let copies = manager.reserve(1, 7).unwrap();
    assert_eq!(copies, [BlockTransfer::Copy { from, to: manager.blocks(1).unwrap()[1] }]);
    // The other one has its block for itself again.
    assert_eq!(manager.reserve(0, 7).unwrap(), []);
    assert_eq!(manager.metrics().copied_blocks, 1);
    // What is not to be found is not.
    manager.forget(0).unwrap();
    manager.release(0).unwrap();
    manager.release(1).unwrap();
    assert_eq!(sequence(&mut manager, 2, &[1, 2, 3, 4, 5]), 0);
}

#[test]
fn mistakes_are_errors_and_change_nothing() {
    let mut manager = PagedKvCacheManager::new(2, 4, true);
    manager.claim(7).unwrap();
    for (error, text) in [
        (manager.claim(7).err(), "there is a sequence 7 already"),
        (manager.fork(7, 7).err(), "there is a sequence 7 already"),
        (manager.release(3).err(), "there is no sequence 3"),
        (manager.reserve(7, 9).err(), "a sequence of 3 blocks of 4 tokens does not fit a cache of 2"),
        (manager.step(7, &[1]).err(), "sequence 7 needs 1 more blocks, and 2 are free"),
        (manager.lookup_table(&[8]).err(), "there is no sequence 8"),
    ] {
        let error = error.unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
    manager.reserve(7, 5).unwrap();
    manager.claim(8).unwrap();
    let error = manager.reserve(8, 1).unwrap_err();
    assert_eq!(error, KvCacheError::Full { request: 8, needed: 1, available: 0 });
    assert_eq!(manager.blocks(8), Some(&[][..]));
}

#[test]
fn sizes_are_estimated_in_whole_blocks() {
    use max_core::dtype::DType;
    let layers = [KvCacheParams::new(DType::F16, 2, 8); 3];
    let block = 3 * 128 * 2 * 2 * 8 * 2;
    assert_eq!(PagedKvCacheManager::bytes_per_block(&layers), block);
    assert_eq!(PagedKvCacheManager::estimated_memory_size(&layers, 4, 129, usize::MAX), 8 * block);
    assert_eq!(PagedKvCacheManager::estimated_memory_size(&layers, 4, 129, 3 * block + 1), 3 * block);
    assert_eq!(PagedKvCacheManager::infer_optimal_batch_size(&layers, 128, 5 * block), 5);
    assert_eq!(PagedKvCacheManager::infer_optimal_batch_size(&layers, 1024, block), 1);
}
