"""Datasets of objects: COCO's JSON and VOC's folders, what is recognised, damaged files, results, subsets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.tasks.predictions import decoded, encoded
from inferometer.evaluators.datasets.base import Objects, Polygons, RunLengths, Subset
from inferometer.evaluators.datasets.coco import CocoDataset, read_results
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.jobs.job import DatasetChoice
from inferometer.evaluators.jobs.request import ScoreOptions
from inferometer.evaluators.scoring.score import ScoreRequest, score
from inferometer.evaluators.tasks.average_precision import run_lengths_of
from inferometer.evaluators.tasks.metric import TaskResult
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import DatasetError

Change = Callable[[dict[str, Any]], object]


def content() -> dict[str, Any]:
    return {
        "images": [
            {"id": 7, "file_name": "b.png", "height": 30, "width": 40},
            {"id": 3, "file_name": "a.png", "height": 30, "width": 40},
        ],
        "categories": [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}],
        "annotations": [
            {"id": 0, "image_id": 7, "category_id": 90, "bbox": [1, 2, 10, 8], "area": 50.5, "iscrowd": 0,
             "segmentation": [[1, 2, 11, 2, 11, 10, 1, 10]]},
            {"id": 1, "image_id": 7, "category_id": 1, "bbox": [0, 0, 40, 30], "area": 9, "iscrowd": 1,
             "segmentation": {"size": [30, 40], "counts": [0, 30, 1170]}},
        ],
    }  # fmt: skip


def pictures(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (40, 30)).save(folder / name)
    return folder


def coco(folder: Path, change: Change = lambda _: None) -> Path:
    pictures(folder / "images", "a.png", "b.png")
    written = content()
    change(written)
    (folder / "annotations.json").write_text(json.dumps(written))
    return folder


def truth(sample: Any) -> Objects:
    found = sample.read_truth()
    assert isinstance(found, Objects)
    return found


def test_coco_has_its_images_in_the_order_of_the_file(tmp_path: Path) -> None:
    dataset = open_path(coco(tmp_path), "vision")
    assert isinstance(dataset, CocoDataset)
    assert (dataset.backend, len(dataset), dataset.labels()) == ("coco", 2, frozenset())
    assert [sample.id for sample in dataset] == ["7", "3"]
    first, second = truth(dataset.sample(0)), truth(dataset.sample(1))
    assert isinstance(dataset.sample(1).read(), EncodedImage)
    assert first.classes == ("toothbrush", "person")
    assert first.boxes.tolist() == [[1, 2, 10, 8], [0, 0, 40, 30]]
    assert (first.areas.tolist(), first.crowds.tolist()) == ([50.5, 9], [False, True])
    assert (second.classes, second.boxes.shape, second.height, second.width) == ((), (0, 4), 30, 40)
    assert first.masks is not None
    polygon, crowd = (run_lengths_of(mask, 30, 40) for mask in first.masks)
    filled = decoded(polygon.counts, 30, 40)
    assert filled[2:10, 1:11].all()
    assert filled.sum() == 80
    assert decoded(crowd.counts, 30, 40)[:, 0].all()
    assert (tmp_path / "annotations.json") in set(dataset.files())


def test_coco_as_it_is_published_is_found_by_its_names(tmp_path: Path) -> None:
    pictures(tmp_path / "val2017", "a.png", "b.png")
    (tmp_path / "annotations").mkdir()
    file = tmp_path / "annotations" / "instances_val2017.json"
    file.write_text(json.dumps(content()))
    assert isinstance(open_path(tmp_path, "vision").sample(0).read(), EncodedImage)
    assert isinstance(open_path(file, "vision").sample(0).read(), EncodedImage)
    file.with_name("instances_train2017.json").write_text("{}")
    with pytest.raises(DatasetError, match="holds 2 files of annotations; name one of them: instances_train"):
        open_path(tmp_path, "vision")


def _first(**values: Any) -> Change:
    return lambda written: written["annotations"][0].update(values)


def _rare(frequency: str) -> Change:
    def change(written: dict[str, Any]) -> None:
        written["categories"][0]["frequency"] = frequency
        written["images"][0]["neg_category_ids"] = [1]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("images"), "has no list of images"),
        (lambda c: c["images"][0].pop("file_name"), "image 7 has no file_name"),
        (lambda c: c["images"][0].update(id=3), "image 1 has no id of its own"),
        (lambda c: c["images"][0].update(file_name="../../secret"), "file_name ../../secret leads out of"),
        (lambda c: c["images"][0].update(height=0), "image 7 has no height and width"),
        (lambda c: [each.update(file_name="c.png") for each in c["images"]], "c.png is in none of"),
        (lambda c: c["categories"][0].update(name="toothbrush"), "category 90 has no name of its own"),
        (_first(image_id=8), "annotation 0: image_id 8 is not one of the images"),
        (_first(image_id=[7]), "annotation 0: image_id is a list, neither a whole number nor a text"),
        (_first(category_id=2), "annotation 0: category_id 2 is not one of the categories"),
        (_first(bbox=[1, 2, -3, 4]), "annotation 0: bbox [1, 2, -3, 4] is not left, top, width and height"),
        (_first(bbox=[1, 2, float("nan"), 4]), "annotation 0: a number of bbox is nan"),
        (_first(bbox=[50, 2, 3, 4]), "annotation 0: bbox [50, 2, 3, 4] is outside of the 40 × 30 pixels"),
        (_first(bbox="1234"), 'annotation 0: bbox is "1234", not a list of numbers'),
        (_first(bbox=[1, 2, True, 4]), "annotation 0: a number of bbox is true, not a number"),
        (_first(area=None), "annotation 0: area is null, not a number"),
        (_first(iscrowd="1"), 'annotation 0: iscrowd is "1"; allowed: 0 or 1'),
        (_first(category_id=True), "annotation 0: category_id is true, neither a whole"),
        (_first(segmentation="x"), 'annotation 0: segmentation is "x"; accepted: run lengths, or polygons'),
        (_first(area=-1), "annotation 0: area is -1"),
        (_first(iscrowd=2), "annotation 0: iscrowd is 2"),
        (_first(difficult="yes"), 'annotation 0: difficult is "yes"; allowed: 0 or 1'),
        (_first(ignore=[1]), "annotation 0: ignore is a list; allowed: 0 or 1"),
        (lambda c: c["images"][0].update(neg_category_ids=[2]), "image 7: neg_category_ids is not a list of"),
        (lambda c: c["images"][1].update(not_exhaustive_category_ids=[[1]]), "image 3: not_exhaustive_categ"),
        (_rare("x"), 'category 1 has frequency "x"; allowed: r, c or f'),
        (lambda c: [each.update(file_name=None, coco_url="s/../x.png") for each in c["images"]], "leads out"),
        (_first(segmentation=[[1, 2, 3]]), "annotation 0: segmentation has a polygon"),
        (_first(segmentation=[[1, 2, 1e300, 2, 3, 4]]), "has a polygon far outside of the 40"),
        (lambda c: c["images"][0].update(width=10**12), "image 7 has no height and width"),
        (_first(segmentation={"size": [3, 4], "counts": [12]}), "its mask has 3 × 4 pixels, but the image"),
        (_first(segmentation={"size": [30, 40], "counts": [12]}), "run lengths do not fill the 1200 pixels"),
        (_first(segmentation={"size": [30, 40], "counts": "\x01"}), "run lengths"),
        (_first(segmentation={"size": [-30, -40], "counts": [1200]}), "segmentation is not run lengths"),
        (_first(segmentation={"size": [30, 40], "counts": ["1200"]}), "counts that are not run lengths"),
        (lambda c: c["images"][0].update(id="3"), "image 1 has no id of its own"),
        (lambda c: c["annotations"][0].pop("bbox"), "annotation 0: has no bbox"),
        (lambda c: c["annotations"].append(3), "annotation number 2: is not an object"),
    ],
)  # fmt: skip
def test_a_damaged_annotation_is_named_with_its_file(tmp_path: Path, change: Change, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        open_path(coco(tmp_path, change), "vision")
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(tmp_path / "annotations.json"))
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"images": 3}'])
def test_what_is_no_coco_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "annotations.json").write_text(text)
    with pytest.raises(DatasetError, match=r"annotations\.json: "):
        open_path(tmp_path, "vision")


VOC = """<annotation><size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>30</ymax>
</bndbox><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
</object><object><name>dog</name><difficult>1</difficult><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>3</xmax>
<ymax>5</ymax></bndbox></object></annotation>"""


def voc(folder: Path, text: str = VOC) -> Path:
    pictures(folder / "JPEGImages", "one.jpg", "two.jpg")
    (folder / "Annotations").mkdir()
    (folder / "Annotations" / "one.xml").write_text(text)
    (folder / "Annotations" / "two.xml").write_text(
        "<annotation><size><width>40</width><height>30</height></size></annotation>"
    )
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "val.txt").write_text("two -1\n")
    return folder


def test_voc_counts_pixels_from_one_and_includes_the_last(tmp_path: Path) -> None:
    dataset = open_path(voc(tmp_path), "vision")
    assert (dataset.backend, [sample.id for sample in dataset]) == ("voc", ["one", "two"])
    assert isinstance(dataset.sample(0).read(), EncodedImage)
    first = truth(dataset.sample(0))
    assert first.classes == ("cat", "dog")  # the head is a part of an object, and none
    assert first.boxes.tolist() == [[0, 0, 40, 30], [2, 3, 1, 2]]
    assert (first.areas.tolist(), first.crowds.tolist()) == ([1200, 2], [False, True])
    assert truth(dataset.sample(1)).classes == ()
    listed = open_path(tmp_path / "ImageSets" / "Main" / "val.txt", "vision")
    assert [sample.id for sample in listed] == ["two"]
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("three\n")
    with pytest.raises(DatasetError, match=r"three\.xml: is missing"):
        open_path(tmp_path / "ImageSets" / "Main" / "val.txt", "vision")


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><annotation>&b;</annotation>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "has a document type or entities"),
        (
            BOMB.replace("ENTITY a", 'ENTITY a SYSTEM "file:///etc/passwd">'),
            "has a document type or entities",
        ),
        ("<annotation>", "is not XML at line 1, column "),
        ("", "is not XML at line 1, column "),
        (VOC.replace("<width>40</width>", ""), "has no size/width"),
        (VOC.replace("<width>40", "<width>0"), "size is 0 × 30"),
        (VOC.replace("<xmax>40", "<xmax>forty"), "object 0: bndbox/xmax is forty, not a number"),
        (VOC.replace("<xmax>40", "<xmax>0"), "object 0: its bndbox ends before it begins"),
        (
            VOC.replace("<xmin>3<", "<xmin>50<").replace("<xmax>3<", "<xmax>60<"),
            "object 1: its bndbox is outside",
        ),
        (VOC.replace("<name>dog</name>", ""), "object 1: has no name"),
        (VOC.replace("<ymin>4", "<ymin>nan"), "object 1: bndbox/ymin is nan"),
    ],
)
def test_a_damaged_annotation_of_voc_is_named(tmp_path: Path, text: str, said: str) -> None:
    dataset = open_path(voc(tmp_path, text), "vision")
    with pytest.raises(DatasetError) as caught:
        dataset.sample(0).read_truth()
    assert str(caught.value).startswith(f"{tmp_path / 'Annotations' / 'one.xml'}: ")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_subset_has_the_samples_with_these_ids_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    dataset = open_path(coco(tmp_path), "vision")
    assert [sample.id for sample in Subset(dataset, ["3", "7"])] == ["7", "3"]
    only = Subset(dataset, ["3"])
    assert (len(only), only.sample(0).id, only.backend) == (1, "3", "coco")
    assert (only.identity.size, only.identity.sample_ids) == (1, ("3",))
    assert only.identity.chosen_samples == "1 by id: 3"
    sorted_anew = Subset(dataset, ["7", "3"]).identity.sample_ids_checksum
    assert sorted_anew == Subset(dataset, ["3", "7"]).identity.sample_ids_checksum
    assert sorted_anew != only.identity.sample_ids_checksum
    assert (dataset.identity.sample_ids, dataset.identity.chosen_samples) == (None, None)
    for ids, said in ((["8"], 'has no sample "8"'), ([], "no sample_ids are given")):
        with pytest.raises(DatasetError, match=said):
            Subset(dataset, ids)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    dataset = open_path(coco(tmp_path), "vision")
    assert isinstance(dataset, CocoDataset)
    path, mask = tmp_path / "results.json", encoded(np.eye(30, 40, dtype=np.bool_))
    row = {"category_id": 90, "bbox": [1.1, 2.2, 10.2, 8.2], "score": 0.9}
    segmentation = {"size": [30, 40], "counts": mask.decode("ascii")}
    path.write_text(
        json.dumps([row | {"image_id": 7}, row | {"image_id": "x", "segmentation": segmentation}])
    )
    found = read_results(path, dataset.categories, ["person", "toothbrush"])
    [boxed], [masked] = found["7"].objects, found["x"].objects
    assert (boxed.box, boxed.score, boxed.category, boxed.area) == ((1.1, 2.2, 10.2, 8.2), 0.9, 1, 10.2 * 8.2)
    assert masked.mask == RunLengths(30, 40, mask)
    assert masked.area == 10.2 * 8.2  # as in pycocotools, which goes by the boxes where there are some


def test_boxes_and_scores_keep_their_float64(tmp_path: Path) -> None:
    def change(written: dict[str, Any]) -> None:
        written["images"].reverse()
        written["annotations"][0].update(bbox=[0.3, 2, 4.6, 8], area=36.8)

    dataset, path = coco(tmp_path / "data", change), tmp_path / "results.json"
    half = {"image_id": 7, "category_id": 90, "bbox": [0.3, 2, 2.3, 8], "score": 0.90000000001}
    path.write_text(json.dumps([half]))  # an overlap of 0.5, and less in float32
    assert score_results(path, dataset, "object_detection").score("AP50") == pytest.approx(1.0)
    # the wrong one is in the image before, and has the lower of two scores that are one float32
    path.write_text(json.dumps([{**half, "image_id": 3, "score": 0.9}, {**half, "bbox": [0.3, 2, 4.6, 8]}]))
    assert score_results(path, dataset, "object_detection").score("AP") == pytest.approx(1.0)


RUNS = {"size": [30, 40], "counts": [62, 8, *([22, 8] * 9), 860]}
"""The mask of the box 2, 2, 10, 8."""


def test_a_box_is_derived_from_a_mask(tmp_path: Path) -> None:
    dataset, path = coco(tmp_path / "data"), tmp_path / "results.json"

    def large(written: dict[str, Any]) -> None:
        written["annotations"][0].update(bbox=[2, 2, 10, 8], area=80)

    coco(tmp_path / "data", large)
    path.write_text(json.dumps([{"image_id": 7, "category_id": 90, "score": 0.5, "segmentation": RUNS}]))
    assert score_results(path, dataset, "object_detection").score("AP") == pytest.approx(1.0)


def test_a_dataset_whose_names_stand_twice_in_an_object_is_refused(tmp_path: Path) -> None:
    file = coco(tmp_path) / "annotations.json"
    file.write_text(file.read_text().replace('"area": 50.5', '"area": 50.5, "bbox": [9, 9, 9, 9]'))
    with pytest.raises(DatasetError, match=r'annotations\.json: has "bbox" twice in one object'):
        open_path(tmp_path, "vision")


def test_lvis_as_it_is_published_is_scored_by_its_own_rules(tmp_path: Path) -> None:
    def change(written: dict[str, Any]) -> None:
        for image in written["images"]:  # from the training and the validation images of COCO
            image["coco_url"] = (
                f"http://images.example/{'train' if image['id'] == 7 else 'val'}2017/{image.pop('file_name')}"
            )
        written["images"][0]["not_exhaustive_category_ids"] = [90]
        written["annotations"][1]["iscrowd"] = 0
        _rare("r")(written)

    coco(tmp_path, change)
    pictures(tmp_path / "val2017", "a.png")
    pictures(tmp_path / "train2017", "b.png")
    file, path = tmp_path / "lvis_v1_val.json", tmp_path / "results.json"
    (tmp_path / "annotations.json").rename(file)
    dataset = open_path(file, "vision")
    assert all(isinstance(sample.read(), EncodedImage) for sample in dataset)
    right = {"image_id": 7, "category_id": 90, "bbox": [1, 2, 10, 8], "score": 0.5}
    # image 7 may have more of its class, and nobody looked for it in image 3
    wrong = [{**right, "bbox": [20, 20, 9, 9], "score": 0.9}, {**right, "image_id": 3, "score": 0.9}]
    path.write_text(json.dumps([*wrong, right]))
    result = score_results(path, file, "object_detection")
    assert result.definition.startswith("LVIS AP (pycocotools ")
    figures = [result.score(name) for name in ("AP", "AP_r", "AP_c")]
    assert figures == [pytest.approx(0.5), 0.0, None]
    named = score_results(path, file, "object_detection", average_precision="coco")
    assert named.definition.startswith("COCO AP (pycocotools ")
    assert named.score("AP") == pytest.approx(0.5 / 3)
    with pytest.raises(DatasetError, match="has no neg_category_ids, which LVIS's AP needs"):
        score_results(path, coco(tmp_path / "coco"), "object_detection", average_precision="lvis")


def test_a_difficult_object_of_voc_is_neither_hit_nor_missed(tmp_path: Path) -> None:
    dataset, path = voc(tmp_path / "data"), tmp_path / "results.json"
    cat = {"image_id": "one", "category_id": "cat", "bbox": [0, 0, 40, 20], "score": 0.5}
    dog = {"image_id": "one", "category_id": "dog", "bbox": [2, 3, 1, 2], "score": 0.9}
    path.write_text(json.dumps([cat, dog, {**cat, "image_id": "two", "score": 0.6}]))
    result = score_results(path, dataset, "object_detection", average_precision="voc")
    assert result.definition.startswith("VOC AP (")
    assert {each.name: each.value for each in result.scores} == {"VOC_AP": 0.5, "VOC2007_AP": 0.5}
    assert result.details["classes"] == [
        {"name": "cat", "objects": 1, "predictions": 2, "VOC_AP": 0.5, "VOC2007_AP": 0.5},
        {"name": "dog", "objects": 0, "predictions": 1, "VOC_AP": None, "VOC2007_AP": None},
    ]
    assert result.details["curve"]["precision"] == [0.5] * 101


def score_results(path: Path, data: Path, task: str, *ids: str, **parameters: Any) -> TaskResult:
    """Scores a file against a dataset, or some of its images."""
    choice = DatasetChoice(path=data, sample_ids=ids or None)
    request = ScoreRequest(task=task, predictions=path, dataset=choice, options=ScoreOptions(**parameters))
    return score(request, Catalog(), None).result


def test_results_of_another_tool_are_scored(tmp_path: Path) -> None:
    dataset = coco(tmp_path / "data")
    path = tmp_path / "results.json"
    right = {"image_id": 7, "category_id": 90, "bbox": [1, 2, 10, 8], "score": 0.5}
    path.write_text(json.dumps([right]))
    result = score_results(path, dataset, "object_detection")
    assert (result.samples, result.score("AP")) == (2, pytest.approx(1.0))
    assert result.score("AP_small") == pytest.approx(1.0)
    path.write_text(json.dumps([right, {**right, "image_id": 3, "score": 0.6}]))
    assert score_results(path, dataset, "object_detection").score("AP") == pytest.approx(0.5)
    assert score_results(path, dataset, "object_detection", "7").score("AP") == pytest.approx(1.0)
    mask = {"size": [30, 40], "counts": "0"}
    path.write_text(json.dumps([{**right, "segmentation": mask}]))
    with pytest.raises(DatasetError, match="result 0: run lengths"):
        score_results(path, dataset, "instance_segmentation")
    filled = run_lengths_of(Polygons(((1.0, 2.0, 11.0, 2.0, 11.0, 10.0, 1.0, 10.0),)), 30, 40)
    assert isinstance(filled, RunLengths)
    path.write_text(
        json.dumps([{**right, "segmentation": {"size": [30, 40], "counts": filled.counts.decode()}}])
    )
    assert score_results(path, dataset, "instance_segmentation").score("AP") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({}, "is not a list of results"),
        ([3], "result 0: is not an object"),
        ([{"image_id": 7, "score": 1, "bbox": [0, 0, 1, 1]}], "result 0: has no category_id"),
        (
            [{"image_id": 7, "category_id": 4, "score": 1, "bbox": [0, 0, 1, 1]}],
            "category_id 4 is not one of the dataset",
        ),
        (
            [{"image_id": 7, "category_id": 1, "score": "high", "bbox": [0, 0, 1, 1]}],
            'result 0: score is "high", not a number',
        ),
        (
            [{"image_id": 7, "category_id": 1, "score": 1, "bbox": [0, 0, 1]}],
            "result 0: bbox is not left, top",
        ),
        (
            [{"image_id": 7, "category_id": 1, "score": True, "bbox": [0, 0, 1, 1]}],
            "result 0: score is true, not a number",
        ),
        (
            [{"image_id": 7, "category_id": 1, "score": 1, "bbox": "1234"}],
            'result 0: bbox is "1234", not a list of numbers',
        ),
        (
            [{"image_id": 7, "category_id": True, "score": 1, "bbox": [0, 0, 1, 1]}],
            "result 0: category_id is true, neither",
        ),
        (
            [{"image_id": None, "category_id": 1, "score": 1, "bbox": [0, 0, 1, 1]}],
            "result 0: image_id is null, neither a whole number nor a text",
        ),
        (
            [
                {"image_id": 7, "category_id": 1, "score": 1, "bbox": [0, 0, 1, 1]},
                {"image_id": 7, "category_id": 1, "score": 1, "segmentation": RUNS},
            ],
            "result 1: has no bbox, which the first result has",
        ),
        (
            [
                {"image_id": 7, "category_id": 1, "score": 1, "segmentation": RUNS},
                {"image_id": 7, "category_id": 1, "score": 1, "bbox": [0, 0, 1, 1]},
            ],
            "result 1: has no segmentation, which the first result has",
        ),
        ([{"image_id": 7, "category_id": 1, "score": 1}], "result 0: has neither bbox nor segmentation"),
        (
            [{"image_id": 8, "category_id": 1, "score": 1, "bbox": [0, 0, 1, 1]}],
            'predicts "8", which dataset',
        ),
    ],
)
def test_damaged_results_are_refused(tmp_path: Path, entries: Any, said: str) -> None:
    dataset = coco(tmp_path / "data")
    path = tmp_path / "results.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(DatasetError) as caught:
        score_results(path, dataset, "object_detection")
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_many_categories_are_read_at_once(tmp_path: Path) -> None:
    names = [{"id": number, "name": f"class {number}"} for number in range(60_000)]
    content = json.dumps({"images": [], "annotations": [], "categories": names})
    (tmp_path / "annotations.json").write_text(content)
    began = time.process_time()
    with closing(CocoDataset(tmp_path, "vision")) as dataset:
        assert len(dataset.categories) == len(names)
    assert time.process_time() - began < 10  # 0.2 s; each with each would take 30
